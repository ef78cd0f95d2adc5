"""Tokens: EdDSA-signed JWTs.

A token lives at most 15 minutes, and one of role `client`, which is the API key of a program that cannot renew it, a year. It names its
audience, holder, role, allowed tasks and the holder's epoch. Signing keys rotate with an
overlap: the newest signs, older ones verify until every token they signed is over. `revoke` raises the holder's epoch, which ends all its
tokens and certificates at once. Keys and epochs lie in `auth/` of the state folder, or in `auth.folder` so that several
coordinators share them (mode 0600); they are replaced whole and synced, and a running coordinator sees a change at its next check.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from coordinator.config import MOST_CLIENT_TOKEN_LIFE_S, AuthConfig
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, StateError, Unauthenticated, UsageError
from edge.core.files import write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAX_LIFE_S = 900
CLIENT = "client"
"""The role of programs that speak OpenAI's protocol: charged to the device of their name, served at `openai_listen` alone."""
MAX_SKEW_S = 60
MAX_TOKEN_CHARS = 4096
MAX_REMEMBERED = 4096
CHECK_FILES_S = 0.1
ALGORITHM = "EdDSA"
ISSUER = "edge-coordinator"
ROLES = ("device", CLIENT, "admin", "console", "metrics")
AUTH_FOLDER = "auth"
PRIVATE_BYTES = 32
SHARE_KEYS = "set auth.folder to one folder that all coordinators on this ledger share"
ISSUE_ANEW = "issue a new one at this coordinator: edge-coordinator token issue DEVICE"
T = TypeVar("T")
_REQUIRED = ("iss", "aud", "sub", "role", "epoch", "iat", "nbf", "exp", "begun", "jti")


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a token; times in whole seconds since the epoch."""

    role: str
    name: str
    tasks: tuple[str, ...]
    """Empty means every task."""
    epoch: int
    issued_at: int
    expires_at: int
    begun: int
    """When the first token of the chain was issued."""
    kid: str = ""
    """The key that signed it."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key; times in seconds since the epoch."""

    kid: str
    private: str = field(repr=False)
    """Hex of 32 bytes."""
    made_at: int
    ends_at: int | None = None
    """Set once a newer one signs: when the last token of a short life that it signed is over."""

    def verifies(self, role: str, now: float) -> bool:
        """Whether it verifies tokens of this role still: once a newer one signs, as long as one that it signed may live."""
        return self.ends_at is None or now < self.ends_at + longest_life_s(role) - MAX_LIFE_S


@dataclass(frozen=True, slots=True)
class HolderRow:
    """A holder of credentials; times in seconds since the epoch."""

    role: str
    name: str
    epoch: int = 0
    revoked_at: int | None = None
    """The last time."""
    issued_at: int | None = None
    """When it last got a first token."""


class _JsonFile(Generic[T]):
    """What a file holds, read again when it has changed; looked at every CHECK_FILES_S at most where there is a clock."""

    def __init__(self, path: Path, decode: Callable[[Any], T], monotonic: Callable[[], float] | None) -> None:
        self._path = str(path)
        self._decode = decode
        self._monotonic = monotonic
        self._seen: tuple[tuple[int, int, int] | None, T] | None = None  # one value: other threads read here, too
        self.fresh_until = 0.0

    def content(self) -> T:
        """What it holds now; of no file what an empty list means. Raises StateError when it is damaged."""
        now = 0.0 if self._monotonic is None else self._monotonic()
        seen = self._seen
        if seen is None or now >= self.fresh_until:
            self._seen = seen = self._read(seen)
            self.fresh_until = 0.0 if self._monotonic is None else now + CHECK_FILES_S
        return seen[1]

    def put(self, rows: list[dict[str, Any]]) -> None:
        """Replace it whole."""
        write_atomically(Path(self._path), json.dumps(rows, indent=1).encode(), mode=0o600)
        self.fresh_until = 0.0

    def _read(self, seen: tuple[tuple[int, int, int] | None, T] | None) -> tuple[tuple[int, int, int] | None, T]:
        """Stamp and content as they are now; `seen` where nothing has changed."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - at every call
        except FileNotFoundError:
            return None, self._decode([])
        except OSError as error:
            raise StateError(f"{self._path} cannot be read: {error.strerror}") from error
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen is not None and stamp == seen[0]:
            return seen
        try:
            return stamp, self._decode(json.loads(Path(self._path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            hint = "restore it, or delete the folder and issue all tokens anew"
            raise StateError(f"{self._path} is damaged", hint=hint) from error


class TokenStore:
    """Signing keys and epochs in a folder. Reading notices changes by other processes; writing holds a lock."""

    def __init__(
        self, state_dir: Path, folder: Path | None = None, *, writable: bool = True, monotonic: Callable[[], float] | None = None
    ) -> None:
        """`folder` instead of `auth` in the state folder; not `writable`: other coordinators would not see what is written there.

        With a clock (`monotonic`) the files are checked every CHECK_FILES_S at most; what this object writes is known at once.
        """
        self.folder = folder or state_dir / AUTH_FOLDER
        self._writable = writable
        self._keys = _JsonFile(self.folder / "signing_keys.json", _signing_keys, monotonic)
        self._holders = _JsonFile(self.folder / "holders.json", _holders, monotonic)

    def signing_keys(self) -> tuple[SigningKey, ...]:
        """Newest first. Raises StateError when the file is damaged."""
        return self._keys.content()

    def holders(self) -> dict[tuple[str, str], HolderRow]:
        """By role and name. Raises StateError when the file is damaged."""
        return self._holders.content()

    def epoch_of(self, role: str, name: str) -> int:
        """The epoch a holder's credentials must have."""
        row = self.holders().get((role, name))
        return row.epoch if row else 0

    def read_again(self) -> None:
        """Read the files at the next question, whenever they were read last."""
        self._keys.fresh_until = self._holders.fresh_until = 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time over all processes, who reads what is there now. Raises CoordinatorError (KEYS_NOT_SHARED), StateError."""
        if not self._writable:
            raise CoordinatorError(
                "tokens are neither issued nor revoked here: other coordinators on this ledger would not see it",
                reason="KEYS_NOT_SHARED",
                hint=SHARE_KEYS,
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.read_again()
                yield
        except OSError as error:
            raise StateError(f"cannot write into {self.folder}: {error.strerror}") from error

    def put_keys(self, keys: Sequence[SigningKey]) -> None:
        """Replace all signing keys; newest first."""
        self._keys.put([asdict(key) for key in keys])

    def put_holder(self, row: HolderRow) -> None:
        """Write one holder."""
        rows = {**self.holders(), (row.role, row.name): row}
        self._holders.put([asdict(rows[key]) for key in sorted(rows)])


def _signing_keys(data: list[dict[str, Any]]) -> tuple[SigningKey, ...]:
    """Raises ValueError, TypeError for one that could not sign."""
    keys = tuple(SigningKey(**row) for row in data)
    if any(len(bytes.fromhex(key.private)) != PRIVATE_BYTES or not _are_whole(key.made_at, key.ends_at or 0) for key in keys):
        raise ValueError("no signing key")
    return keys


def _holders(data: list[dict[str, Any]]) -> dict[tuple[str, str], HolderRow]:
    rows = [HolderRow(**row) for row in data]
    if not _are_whole(*(each for row in rows for each in (row.epoch, row.revoked_at or 0, row.issued_at or 0))):
        raise ValueError("no holders")
    return {(row.role, row.name): row for row in rows}


def _are_whole(*numbers: Any) -> bool:
    return all(type(number) is int for number in numbers)


class TokenAuthority:
    """Issues, renews, checks and revokes. One object a process; checked tokens are remembered by digest until they end."""

    def __init__(self, store: TokenStore, auth: AuthConfig, clock: Clock) -> None:
        self._store = store
        self._auth = auth
        self._clock = clock
        self._known: OrderedDict[bytes, Claims] = OrderedDict()

    def issue(self, role: str, name: str, tasks: Sequence[str] = (), life_s: int | None = None) -> str:
        """A first token for a holder; makes the first signing key where there is none. Raises UsageError, StateError."""
        if role not in ROLES:
            raise UsageError(f"unknown role {role!r}; known: {', '.join(ROLES)}")
        if life_s is None:
            life_s = self._auth.client_token_life_s if role == CLIENT else self._auth.token_life_s
        if not 1 <= life_s <= longest_life_s(role):
            raise UsageError(f"a token of role {role} lives 1 to {longest_life_s(role)} s, not {life_s}")
        now = int(self._clock.now())
        with self._store.writing():
            if not self._store.signing_keys():
                self._store.put_keys([_new_key(now)])
            row = self._store.holders().get((role, name), HolderRow(role, name))
            self._store.put_holder(replace(row, issued_at=now))
        return self._signed(Claims(role, name, tuple(tasks), row.epoch, now, now + life_s, now))

    @property
    def life_s(self) -> int:
        """Seconds that a token lives unless a shorter life was asked for."""
        return self._auth.token_life_s

    def renew(self, role: str, name: str, tasks: Sequence[str] = (), begun: int | None = None) -> str:
        """A fresh token for a holder that has shown a valid credential; `begun`: of its token (None: it showed a certificate)."""
        now = int(self._clock.now())
        begun = now if begun is None else begun
        if now - begun > self._auth.renewable_s:
            raise Unauthenticated("the token cannot be renewed any more", hint="issue a new one: edge-coordinator token issue")
        if not self._store.signing_keys():
            with self._store.writing():
                self._store.put_keys(self._store.signing_keys() or [_new_key(now)])
        epoch = self._store.epoch_of(role, name)
        return self._signed(Claims(role, name, tuple(tasks), epoch, now, now + self._auth.token_life_s, begun))

    def rotate(self, *, at_once: bool = False) -> SigningKey:
        """A new signing key. Older ones verify until their tokens are over, or with `at_once` (a key got out) not at all any more."""
        now = int(self._clock.now())
        ends_at = now + MAX_LIFE_S + MAX_SKEW_S
        with self._store.writing():
            fresh = _new_key(now)
            kept = [] if at_once else [each for each in self._store.signing_keys() if each.verifies(CLIENT, now)]
            self._store.put_keys([fresh, *(replace(each, ends_at=each.ends_at or ends_at) for each in kept)])
        return fresh

    def revoke(self, role: str, name: str) -> HolderRow:
        """End all tokens and certificates of a holder; later ones are valid again."""
        with self._store.writing():
            row = self._store.holders().get((role, name), HolderRow(role, name))
            row = replace(row, epoch=row.epoch + 1, revoked_at=int(self._clock.now()))
            self._store.put_holder(row)
        return row

    def is_known(self, token: str) -> bool:
        """Whether this very token was checked before; it still has to be checked again, but no guess gets here."""
        return _digest(token) in self._known

    def check(self, token: str) -> Claims:
        """The claims of a valid token. Raises Unauthenticated that says why not, CoordinatorUnavailable when keys cannot be read."""
        digest = _digest(token)
        claims = self._known.get(digest)
        if claims is None:
            if len(token) > MAX_TOKEN_CHARS:
                raise _refusal("the token is too long", "MALFORMED")
            key = self._verifying_key(_kid_of(token), CLIENT, self._clock.now())  # its own role is known once it is verified
            claims = self._known[digest] = _verified(token, key, self._auth.audience)
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        self.require_current(claims)
        return claims

    def require_current(self, claims: Claims) -> None:
        """Hold claims that were checked before to their key, to time and to the epoch again. Raises as `check` does."""
        now, skew_s = self._clock.now(), self._auth.clock_skew_s
        self._verifying_key(claims.kid, claims.role, now)
        if now >= claims.expires_at + skew_s:
            raise _refusal("the token has expired", "EXPIRED")
        if claims.issued_at > now + skew_s:
            raise _refusal("the token is not valid yet: the clocks of device and coordinator differ", "NOT_YET_VALID")
        self.require_epoch(claims.role, claims.name, claims.epoch)

    def require_epoch(self, role: str, name: str, epoch: int) -> None:
        """Raises Unauthenticated when this epoch of a holder is over, CoordinatorUnavailable when that cannot be read."""
        for _ in range(2):
            if epoch == _readable(lambda: self._store.epoch_of(role, name)):
                return
            self._store.read_again()
        raise _refusal(f"the credential of {role} {name} was revoked", "REVOKED")

    def _verifying_key(self, kid: str, role: str, now: float) -> SigningKey:
        """The key of this id, perhaps one that another process has just made. Raises Unauthenticated, CoordinatorUnavailable."""
        for _ in range(2):
            for key in _readable(self._store.signing_keys):
                if key.kid == kid and key.verifies(role, now):
                    return key
            self._store.read_again()
        raise _refusal("the token is signed with an unknown key", "UNKNOWN_KEY", hint=ISSUE_ANEW)

    def _signed(self, claims: Claims) -> str:
        import jwt

        signer = self._store.signing_keys()[0]
        payload = {
            "iss": ISSUER,
            "aud": self._auth.audience,
            "sub": claims.name,
            "role": claims.role,
            "tasks": list(claims.tasks),
            "epoch": claims.epoch,
            "iat": claims.issued_at,
            "nbf": claims.issued_at,
            "exp": claims.expires_at,
            "begun": claims.begun,
            "jti": secrets.token_hex(8),
        }
        return jwt.encode(payload, _private(signer), algorithm=ALGORITHM, headers={"kid": signer.kid})


def longest_life_s(role: str) -> int:
    """The most seconds that a token of this role lives."""
    return MOST_CLIENT_TOKEN_LIFE_S if role == CLIENT else MAX_LIFE_S


def _readable(read: Callable[[], T]) -> T:
    """Keys and epochs that cannot be read are no reason to refuse for good. Raises CoordinatorUnavailable for StateError."""
    try:
        return read()
    except StateError as error:
        raise CoordinatorUnavailable(
            "credentials cannot be checked now", reason="LEDGER_UNAVAILABLE", retry_after_s=2.0
        ) from error


def _verified(token: str, key: SigningKey, audience: str) -> Claims:
    """The claims of a token with a good signature, issuer, audience and shape; times are not compared with now."""
    import jwt

    options: Any = {"require": list(_REQUIRED), "strict_aud": True}
    options |= dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat"), False)
    try:
        data = jwt.decode(
            token,
            _private(key).public_key(),
            algorithms=[ALGORITHM],
            audience=audience,
            issuer=ISSUER,
            options=options,
        )
    except jwt.InvalidAudienceError as error:
        raise _refusal("the token is for another audience", "AUDIENCE") from error
    except jwt.PyJWTError as error:
        raise _refusal("the token does not verify", "SIGNATURE") from error
    return _claims(data, key.kid)


def _claims(data: dict[str, Any], kid: str) -> Claims:
    numbers = [data[name] for name in ("epoch", "iat", "nbf", "exp", "begun")]
    tasks = data.get("tasks", [])
    texts_fit = isinstance(tasks, list) and all(isinstance(each, str) for each in (data["sub"], data["role"], *tasks))
    if not texts_fit or any(type(number) is not int for number in numbers) or data["role"] not in ROLES:
        raise _refusal("the token's claims are malformed", "MALFORMED")
    epoch, issued_at, not_before, expires_at, begun = numbers
    if not 0 < expires_at - issued_at <= longest_life_s(data["role"]):
        raise _refusal("the token lives too long", "MALFORMED")
    return Claims(data["role"], data["sub"], tuple(tasks), epoch, max(issued_at, not_before), expires_at, begun, kid)


def _kid_of(token: str) -> str:
    import jwt

    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise _refusal("the token is malformed", "MALFORMED") from error
    if header.get("alg") != ALGORITHM:
        raise _refusal("the token is not signed as it must be", "ALGORITHM")
    return str(header.get("kid", ""))


def _digest(token: str) -> bytes:
    """Tokens are looked up by digest, so that no comparison's time reveals anything of a token."""
    return hashlib.sha256(token.encode()).digest()


def _new_key(now: int) -> SigningKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    kid = hashlib.sha256(private.public_key().public_bytes_raw()).hexdigest()[:16]
    return SigningKey(kid, private.private_bytes_raw().hex(), now)


def _private(key: SigningKey) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.private))


def _refusal(message: str, cause: str, hint: str = "") -> Unauthenticated:
    return Unauthenticated(message, hint=hint, metadata={"cause": cause})
