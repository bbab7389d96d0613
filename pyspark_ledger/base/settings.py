"""Where a namespace is and who we are, by names that are the same everywhere: as Spark's options, in the client's and
the command line's arguments, in the environment (``LEDGER_…``) and in a file of profiles.

What is given goes before what the environment says, and that before the profile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_ledger.base import profiles
from pyspark_ledger.base.login import Login, login_of
from pyspark_ledger.base.setting_names import VARIABLES, checked, is_secret, variable

DEFAULT_ZOOKEEPER = "127.0.0.1:2181"

# A user and the password: those of one source belong together.
_PAIRS = (
    ("zookeeper.user", "zookeeper.password"),
    ("zookeeper.sasl.user", "zookeeper.sasl.password"),
    ("storage.accessKey", "storage.secretKey"),
    ("storage.accessKey", "storage.sessionToken"),
    ("storage.proxy.user", "storage.proxy.password"),
)


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """What was given, by name; a value that can be a key and be pickled. What comes from a profile is not in it, but
    looked up whenever it is asked for: so a profile may change while a process runs, and its secrets go nowhere."""

    given: tuple[tuple[str, str], ...] = ()
    file: str = ""  # with the profiles; empty: where this process has it

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> Settings:
        """Exactly these; names may be written in small letters, as Spark does. None: not given."""
        return cls._of(checked(values, lambda name: f"option '{name}'"))

    @classmethod
    def _of(cls, values: Mapping[str, str], file: str = "") -> Settings:
        return cls(tuple(sorted(values.items())), file)

    def here(self) -> Settings:
        """With what this process's environment says about all that is not given."""
        environment = {name: os.environ[found] for name, found in VARIABLES.items() if os.environ.get(found)}
        values = _merged(dict(self.given), checked(environment, lambda name: f"the environment's {variable(name)}"))
        file = self.file or (profiles.config_file() if "profile" in values else "")
        return Settings._of(values, file)

    def values(self) -> dict[str, str]:
        """All that is known at this moment: what is given, and what the profile says."""
        given = dict(self.given)
        profile = given.pop("profile", None)
        if profile is None:
            return given
        file = self.file or profiles.config_file()
        return _merged(given, profiles.read(file, profile))

    @property
    def zookeeper(self) -> str:
        """The connect string."""
        return self.values().get("zookeeper", DEFAULT_ZOOKEEPER)

    @property
    def storage(self) -> str | None:
        """Where the files are, if that is said."""
        return self.values().get("storage")

    @property
    def storage_settings(self) -> dict[str, str]:
        """How to get there: every ``storage.…``."""
        return {name: text for name, text in self.values().items() if name.startswith("storage.")}

    @property
    def has_profile(self) -> bool:
        """Whether values may change while a process runs."""
        return any(name == "profile" for name, _ in self.given)

    def how_to_store(self) -> Settings:
        """Of these only what says how to get into the storage."""
        kept = {name: text for name, text in self.given if name == "profile" or name.startswith("storage.")}
        return Settings._of(kept, self.file if "profile" in kept else "")

    def for_tasks(self) -> Settings:
        """What tasks need, as it is at this moment: they get into the storage, and nowhere else."""
        return Settings.of(self.storage_settings) if self.given else NOTHING_GIVEN

    def who(self) -> Settings:
        """Of these only what says who we are: alike for all namespaces of the same servers, who share a connection."""
        login = {name: text for name, text in self.given if name == "profile" or name.startswith("zookeeper.")}
        return Settings._of(login, self.file)

    def login(self) -> Login:
        return login_of(self.values())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={'…' if is_secret(name) else text!r}" for name, text in self.given)
        return f"Settings({shown})"


NOTHING_GIVEN = Settings()


def _merged(strong: Mapping[str, str], weak: Mapping[str, str]) -> dict[str, str]:
    """Both, where the strong ones win. A user who is given without a password does not get that of another user."""
    rest = dict(weak)
    for user, password in _PAIRS:
        if user in strong and strong[user] != rest.get(user, strong[user]):
            rest.pop(password, None)
    return {**rest, **strong}
