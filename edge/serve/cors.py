"""What is answered to pages of origins that the user has named. Knows the CORS headers; knows nothing of which origins these are.

Cookies and other credentials of the browser are never asked for, since nothing here reads them; a token travels in its header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.responses import Response

from edge.serve.told import HEADER_NAMES

_METHODS = "GET, POST"
_KEPT_S = 600
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")


def preflight(headers: Mapping[str, str]) -> Response:
    """The answer to a browser that asks before it sends. Whatever header the page wants to send is welcome."""
    asked = headers.get("access-control-request-headers", "")
    wanted = [name.strip() for name in asked.split(",")]
    allowed = {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": ", ".join(name for name in wanted if _NAME.fullmatch(name)),
        "access-control-max-age": str(_KEPT_S),
    }
    if headers.get("access-control-request-private-network") == "true":
        allowed["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=allowed)


def answered_headers(origin: str) -> list[tuple[bytes, bytes]]:
    """What lets a page of this origin, and of no other one, read an answer and its headers."""
    pairs = {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": ", ".join((*HEADER_NAMES, "retry-after")),
        "vary": "Origin",
    }
    return [(name.encode("latin-1"), text.encode("latin-1")) for name, text in pairs.items()]
