"""The forms that keys, tokens and passwords have in a text."""

from __future__ import annotations

import re

QUOTED = r"""(?:b?"(?:[^"\\]|\\.)*"?|b?'(?:[^'\\]|\\.)*'?)"""
_JWT = r"\beyJ[A-Za-z0-9_-]{4,1024}\.[A-Za-z0-9_-]{0,8192}\.[A-Za-z0-9_-]*"
_PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_VENDOR_KEY = r"\b(?:sk|pk|rk|xai|gsk|hf|ghp|glpat|AKIA|AIza)[-_]?[A-Za-z0-9_-]{16,}"
_URL_PASSWORD = r"(?<=://)[^/\s:@'\"]*:[^/\s@'\"]+(?=@)"  # noqa: S105
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")
_NAMED = re.compile(
    rf"(?i)(\b(?:proxy-)?authorization|x-api-key|api[-_]?key|password|passwd|secret|token)(['\"]?\s*[:=]\s*)(?:{QUOTED}|(?!\[cut\])[^\s,;'\")}}]+)"
)
SECRET_FORMS = tuple(re.compile(form) for form in (_PRIVATE_KEY, _JWT, _VENDOR_KEY, _URL_PASSWORD))
CUT = "[cut]"


def without_secrets(text: str) -> str:
    """The text without what has the form of a secret, or follows a secret's name."""
    for form in SECRET_FORMS:
        text = form.sub(CUT, text)
    text = _BEARER.sub(rf"\1 {CUT}", text)
    return _NAMED.sub(rf"\1\2{CUT}", text)
