"""Formats of JSON schemas that are enforced, as regexes of whole strings."""

from __future__ import annotations

_YEAR = "[0-9]{4}"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
# Without leap seconds: whether one exists depends on the date and the zone.
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_HEX = "[0-9A-Fa-f]"
_GROUP = f"{_HEX}{{1,4}}"
_URI_CHARACTER = rf"(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"


def _ipv6() -> str:
    """Eight groups, or fewer with one run of zeros left out."""
    forms = [f"(?:{_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):
        head = f"{_GROUP}(?::{_GROUP}){{{before - 1}}}" if before else ""
        most = 7 - before
        tail = f"(?:{_GROUP}(?::{_GROUP}){{0,{most - 1}}})?" if most else ""
        forms.append(f"{head}::{tail}")
    return f"(?:{'|'.join(forms)})"


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": (
        "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?"
        "|[0-9]{1,9}D)(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?"
        "|[0-9]{1,9}S))?|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?"
        "|[0-9]{1,9}S))"
    ),
    "email": (
        r"[0-9A-Za-z!#$%&'*+\/=?^_`{|}~-]{1,32}(?:[.][0-9A-Za-z!#$%&'*+\/=?^_`{|}~-]{1,15}){0,2}"
        f"@{_LABEL}(?:[.]{_LABEL}){{1,3}}"
    ),
    "hostname": f"{_LABEL}(?:[.]{_LABEL}){{0,3}}",
    "ipv4": f"(?:{_BYTE}[.]){{3}}{_BYTE}",
    "ipv6": _ipv6(),
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": (
        rf"[A-Za-z][0-9A-Za-z+.-]{{0,15}}:(?:\/\/(?:{_LABEL}(?:[.]{_LABEL}){{0,9}}|{_BYTE}(?:[.]{_BYTE}){{3}})"
        rf"(?::[0-9]{{1,4}})?(?:\/{_URI_CHARACTER}*)*|{_URI_CHARACTER}+(?:\/{_URI_CHARACTER}+)*)"
        rf"(?:[?](?:{_URI_CHARACTER}|[\/?])*)?(?:#(?:{_URI_CHARACTER}|[\/?])*)?"
    ),
}
"""By name; each regex is of ECMA-262 and matches the whole string. Where validators disagree, it holds only
what all of them take."""
