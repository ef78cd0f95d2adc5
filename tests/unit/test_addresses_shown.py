"""Addresses and paths as they are printed."""

from __future__ import annotations

import pytest

from edge.rpc.address import shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("unix:{0}/x/../restored//admin.sock", "unix:{0}/restored/admin.sock"),
        ("{0}/./x/..", "{0}"),
        ("unix:{0}/admin.sock", "unix:{0}/admin.sock"),
        ("127.0.0.1:7420", "127.0.0.1:7420"),
        ("[::1]:7420", "[::1]:7420"),
    ],
)
def test_what_is_printed_goes_the_short_way(tmp_path, text: str, told: str) -> None:
    assert shown(text.format(tmp_path)) == told.format(tmp_path)


def test_a_way_through_a_link_is_printed_as_it_is_because_the_short_one_leads_elsewhere(tmp_path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    assert shown(f"unix:{tmp_path}/link/../a.sock") == f"unix:{tmp_path}/link/../a.sock"
