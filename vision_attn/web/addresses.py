"""Listen at the address of the page, and refuse requests from pages of other sites."""

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from vision_attn.system.errors import UserError


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at `host`, which may be a name or an address of version 4 or 6, in brackets or not.
    Raises OSError if it cannot be used, and UserError for no host at all, which would mean all of them."""
    if not bare(host):
        raise UserError("the host is empty: name an address, such as 127.0.0.1, or 0.0.0.0 for all")
    addresses = socket.getaddrinfo(bare(host), port, type=socket.SOCK_STREAM)
    family, *_, place = min(
        addresses, key=lambda address: address[0] != socket.AF_INET
    )  # version 4 where there are both
    address = ip_address(place[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None  # ::ffff:127.0.0.1
    if mapped is not None:
        family, place = socket.AF_INET, (str(mapped), port)
    return socket.create_server(place, family=family)


def bare(host: str) -> str:
    """Return a host without the brackets that an address of version 6 may have."""
    return host.removeprefix("[").removesuffix("]")


def url_of(host: str, port: int) -> str:
    """Return the address of the page, for a browser."""
    return f"http://[{bare(host)}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_foreign(headers: Headers, address: str, name: str) -> bool:
    """Return whether a request comes from a page of another site, even one whose own name leads to our address (DNS
    rebinding).

    address: the address to which the connection was made. If only this machine can reach it, a request must use a local
        name or `name`. A browser that came here by a foreign name would send that name.
    name: the name that the user gave the server.
    """
    origin, host = headers.get("origin"), headers.get("host", "")
    try:
        called = urlsplit(f"//{host}")
        if called.netloc != host or "@" in host or called.port == 0:  # .port raises for what is none
            return True
        if origin is not None and urlsplit(origin).netloc != host:
            return True
        return is_local(address) and not (is_local(called.hostname or "") or called.hostname == bare(name).lower())
    except ValueError:  # no address at all
        return True


def is_local(host: str) -> bool:
    """Return whether a name or an address, in any spelling that browsers know, always is this machine."""
    if host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost"):
        return True
    address = numeric(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def numeric(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address in a numeric host: 127.0.0.1, but also 127.1, 0x7f.1, 2130706433 and ::1. None for names."""
    try:
        if re.fullmatch(r"[0-9a-fx.]+", host, re.IGNORECASE):
            return IPv4Address(socket.inet_aton(host))
        return ip_address(host)
    except (ValueError, OSError):
        return None
