"""Where a namespace is and who we are: what goes before what, and what is refused."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ledger.base import profiles
from pyspark_ledger.base.login import Login, Sasl, Tls
from pyspark_ledger.base.setting_names import NAMES, is_secret, variable
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.client import settings_of
from pyspark_ledger.errors import InvalidInput

A_VALUE = {"zookeeper.tls": "true", "zookeeper.tls.verify": "ca", "zookeeper.sasl.mechanism": "DIGEST-MD5"}


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("LEDGER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    """The file with profiles; a test writes it."""
    file = tmp_path / "config.toml"
    file.touch(mode=0o600)
    monkeypatch.setenv("LEDGER_CONFIG", str(file))
    return file


def here(**given: str) -> Settings:
    return Settings.of({name.replace("_", "."): value for name, value in given.items()}).here()


# -- what goes before what


@pytest.mark.parametrize("name", [name for name in NAMES if name != "profile"])
def test_an_option_goes_before_the_environment_and_that_before_the_profile(name, config, monkeypatch):
    choices = {
        "zookeeper.tls": ("true", "false", "true"),
        "zookeeper.tls.verify": ("full", "ca", "none"),
        "zookeeper.sasl.mechanism": ("GSSAPI", "DIGEST-MD5", "GSSAPI"),
        "storage.scheme": ("http", "https", "http"),
        **dict.fromkeys(
            ("storage.anonymous", "storage.backgroundWrites", "storage.virtualAddressing"), ("true", "false", "true")
        ),
    }
    given, around, below = choices.get(name, ("/a", "/b", "/c"))
    config.write_text(f'[prod]\n"{name}" = "{below}"\n')
    assert Settings.of({"profile": "prod"}).here().values() == {name: below}
    monkeypatch.setenv(variable(name), around)
    assert Settings.of({"profile": "prod"}).here().values() == {name: around}
    assert Settings.of({"profile": "prod", name: given}).here().values() == {name: given}
    assert Settings.of({"profile": "prod", name.lower(): given}).here().values() == {name: given}


def test_the_profile_itself_is_given_or_in_the_environment(config, monkeypatch):
    config.write_text('[a]\nzookeeper = "a:1"\n[b]\nzookeeper = "b:1"\n')
    assert here().zookeeper == "127.0.0.1:2181"
    monkeypatch.setenv("LEDGER_PROFILE", "a")
    assert (here().zookeeper, here(profile="b").zookeeper) == ("a:1", "b:1")
    assert here(profile="b", zookeeper="c:1").zookeeper == "c:1"


@pytest.mark.parametrize(
    ("given", "environment", "profile", "digest"),
    [
        ({"password": "me:secret"}, {}, {}, "me:secret"),
        ({"user": "me", "password": "secret"}, {}, {}, "me:secret"),
        ({"password": "me:sec:ret"}, {}, {}, "me:sec:ret"),
        ({"user": "me"}, {"password": "secret"}, {}, "me:secret"),
        ({"password": "new"}, {"password": "me:old"}, {}, "me:new"),
        ({"password": "new"}, {}, {"user": "me", "password": "old"}, "me:new"),
        ({"user": "me"}, {}, {"user": "me", "password": "secret"}, "me:secret"),
        ({"password": "a:b"}, {"user": "c", "password": "d"}, {"password": "e:f"}, "a:b"),
        ({}, {"password": "c:d"}, {"user": "e", "password": "f"}, "c:d"),
        ({}, {}, {"password": "e:f"}, "e:f"),
    ],
)
def test_a_user_and_the_password_come_from_where_they_belong_together(
    given, environment, profile, digest, config, monkeypatch
):
    lines = [f'"zookeeper.{name}" = "{value}"' for name, value in profile.items()]
    config.write_text("\n".join(["[prod]", *lines]))
    for name, value in environment.items():
        monkeypatch.setenv(variable(f"zookeeper.{name}"), value)
    settings = Settings.of({"profile": "prod", **{f"zookeeper.{name}": value for name, value in given.items()}}).here()
    assert settings.login() == Login(*digest.split(":", 1))


@pytest.mark.parametrize("pair", ["zookeeper", "zookeeper.sasl"])
def test_a_user_does_not_get_the_password_of_another_I19(pair, monkeypatch):
    monkeypatch.setenv(variable(f"{pair}.user"), "other")
    monkeypatch.setenv(variable(f"{pair}.password"), "of the other")
    settings = Settings.of({f"{pair}.user": "me"}).here()
    with pytest.raises(InvalidInput, match=rf"{pair}\.password"):
        settings.login()


def test_all_of_a_login_is_understood():
    values = {name: A_VALUE.get(name, f"/{name}") for name in NAMES if name.startswith("zookeeper.")}
    login = Settings.of(values).login()
    assert login == Login(
        "/zookeeper.user",
        "/zookeeper.password",
        Tls("/zookeeper.tls.ca", "/zookeeper.tls.cert", "/zookeeper.tls.key", "/zookeeper.tls.password", "ca"),
        Sasl("DIGEST-MD5", "/zookeeper.sasl.user", "/zookeeper.sasl.password", "/zookeeper.sasl.service"),
    )


def test_kerberos_needs_neither_user_nor_password():
    assert here(zookeeper_sasl_mechanism="gssapi").login().sasl == Sasl("GSSAPI")
    assert here(zookeeper_sasl_mechanism="gssapi", zookeeper_sasl_service="zk").login().sasl == Sasl(
        "GSSAPI", service="zk"
    )


def test_tls_is_on_when_something_is_said_about_it_and_false_turns_it_off():
    assert here().login().tls is None
    assert here(zookeeper_tls="true").login().tls == Tls()
    assert here(zookeeper_tls_verify="CA").login().tls == Tls(verify="ca")
    assert here(zookeeper_tls_ca="ca.pem", zookeeper_tls="False").login().tls is None


# -- what is refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"zookeeper.user": "me", "zookeeper.password": "you:x"}, "option 'zookeeper.password' has a colon"),
        ({"zookeeper.user": "a:b", "zookeeper.password": "x"}, "option 'zookeeper.user' has a colon"),
        ({"zookeeper.user": "me"}, "needs 'zookeeper.password'"),
        ({"zookeeper.password": "alone"}, "no user:password"),
        ({"zookeeper.tls": "yes"}, "must be one of true, false"),
        ({"zookeeper.tls.verify": "no"}, "must be one of full, ca, none"),
        ({"zookeeper.tls.key": "k"}, "'zookeeper.tls.key' needs 'zookeeper.tls.cert'"),
        ({"zookeeper.tls.password": "k"}, "'zookeeper.tls.password' needs 'zookeeper.tls.cert'"),
        ({"zookeeper.sasl.mechanism": "PLAIN"}, "must be one of DIGEST-MD5"),
        ({"zookeeper.sasl.user": "me"}, "zookeeper.sasl.password"),
        ({"zookeeper.sasl.mechanism": "GSSAPI", "zookeeper.sasl.password": "x"}, "not for GSSAPI"),
        ({"zookeeper.sasl.service": "zk"}, "zookeeper.sasl.user"),
        ({"zookeeper.tls.ca": " "}, "must not be empty"),
        ({"zookeeper": 3}, "no text but a int"),
        ({"zookeeper.tls.caa": "x"}, "use 'zookeeper.tls.ca'"),
        ({"zookeeper.tsl.cert": "x"}, "use 'zookeeper.tls.cert'"),
    ],
)
def test_what_is_wrong_is_told_by_name(given, said):
    with pytest.raises(InvalidInput) as caught:
        Settings.of(given).login()
    assert said in caught.value.message


def test_what_is_wrong_in_the_environment_is_told_by_the_variable(monkeypatch):
    monkeypatch.setenv("LEDGER_ZOOKEEPER_TLS_VERIFY", "perhaps")
    with pytest.raises(InvalidInput, match=r"the environment's LEDGER_ZOOKEEPER_TLS_VERIFY is 'perhaps'"):
        here()


def test_an_argument_that_is_also_in_options_is_refused():
    with pytest.raises(InvalidInput, match="'Zookeeper' is given twice"):
        settings_of({"Zookeeper": "b:1"}, "a:1")


# -- profiles


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[other]", "has no profile 'prod'; there are: other"),
        ("", "there are: none"),
        ("zookeeper = 'a:1'\n[prod]", "'zookeeper' in .* stands outside of a profile"),
        ("[prod]\nzookeper = 'a:1'", "profile 'prod' of .*: there is no 'zookeper'; use 'zookeeper'"),
        ('[prod]\n"zookeeper.tsl.ca" = "x"', "use 'zookeeper.tls.ca'"),
        ("[prod]\nprofile = 'test'", "there is no 'profile'"),
        ("[prod]\nzookeeper = 'a:1'\nzookeeper.tls.ca = 'x'", "is no TOML: .*in quotes"),
        ("[prod]\nzookeeper = ['a:1']", "'zookeeper' in profile 'prod' of .* must be text"),
        ('[prod]\n"zookeeper.tls" = 1', "'zookeeper.tls' in profile 'prod' of .* is '1': it must be one of"),
        ("[prod", "is no TOML"),
        ("[prod]\na" + ".a" * 3000 + " = 1", "nested too deeply"),
        (b"[prod]\nzookeeper = '\xff'", "no text in UTF-8"),
    ],
)
def test_a_faulty_file_of_profiles_is_told_with_its_name(text, said, config):
    config.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidInput, match=said) as caught:
        here(profile="prod").values()
    assert str(config) in caught.value.message


def test_without_a_profile_no_file_is_looked_at(config):
    config.write_text("nonsense")
    assert here().zookeeper == "127.0.0.1:2181"
    config.unlink()
    with pytest.raises(InvalidInput, match=r"profile 'prod' is asked for.*LEDGER_CONFIG"):
        here(profile="prod").values()


@pytest.mark.parametrize(("mode", "secret", "refused"), [
    (0o600, True, False), (0o400, True, False), (0o644, True, True), (0o604, True, True), (0o660, True, True),
    (0o640, True, os.getuid() != 0), (0o644, False, False), (0o664, False, False), (0o602, True, True),
    (0o666, False, True), (0o602, False, True),
])  # fmt: skip
def test_a_file_with_secrets_that_others_can_read_is_refused_I19(mode, secret, refused, config):
    """Also if the secret is in another profile. A group may read what root has. And one that everybody can change may
    lead to anybody's server, with a password from elsewhere."""
    config.write_text('[prod]\nzookeeper = "a:1"\n' + ('[test]\n"zookeeper.password" = "me:x"\n' if secret else ""))
    config.chmod(mode)
    if refused:
        with pytest.raises(InvalidInput, match=rf"chmod 600 {config}"):
            here(profile="prod").values()
    else:
        assert here(profile="prod").zookeeper == "a:1"


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_has_no_profiles_and_makes_nobody_wait_I19(kind, config):
    config.unlink()
    os.mkfifo(config) if kind == "pipe" else config.mkdir()
    with pytest.raises(InvalidInput, match=r"profile 'prod' is asked for.*it is no file"):
        here(profile="prod").values()


def test_a_link_is_followed_and_what_it_leads_to_must_be_private_I19(config, tmp_path):
    """As Kubernetes mounts secrets."""
    real = tmp_path / "real.toml"
    real.touch(mode=0o600)
    real.write_text('[prod]\n"zookeeper.password" = "me:x"\n')
    config.unlink()
    config.symlink_to(real)
    assert here(profile="prod").login().digest == "me:x"
    real.chmod(0o644)
    with pytest.raises(InvalidInput, match="holds a secret"):
        here(profile="prod").values()


def test_what_is_judged_is_the_file_that_is_read_I19(config, tmp_path, monkeypatch):
    """Another one is put in its place after a look at the first one."""
    config.write_text('[prod]\nzookeeper = "a:1"\n')
    other = tmp_path / "other"
    other.touch(mode=0o644)
    other.write_text('[prod]\n"zookeeper.password" = "me:x"\n')
    real = os.open

    def swap(*arguments: object) -> int:
        other.replace(config)
        return real(*arguments)

    monkeypatch.setattr(profiles.os, "open", swap)
    with pytest.raises(InvalidInput, match="holds a secret"):
        here(profile="prod").values()


def test_a_profile_names_files_from_where_it_is_and_values_as_toml_has_them(config):
    config.write_text('[prod]\n"zookeeper.tls" = true\n[prod.zookeeper.tls]\nca = "tls/ca.pem"\ncert = "/own.pem"\n')
    with pytest.raises(InvalidInput, match="no TOML"):  # one name, once as a table: only TOML itself can object
        config.write_text('[prod]\nzookeeper = "a:1"\n[prod.zookeeper.tls]\nca = "ca.pem"\n')
        here(profile="prod").values()
    config.write_text(
        '[prod]\n"zookeeper.tls" = true\n"zookeeper.tls.ca" = "tls/ca.pem"\n"zookeeper.tls.cert" = "/own"\n'
    )
    tls = here(profile="prod").login().tls
    assert tls == Tls(ca=str(config.parent / "tls/ca.pem"), cert="/own")


def test_a_profile_is_looked_up_whenever_it_is_asked_for_and_is_one_key_for_all_time(config):
    config.write_text('[prod]\n"zookeeper.password" = "me:one"\n')
    settings = here(profile="prod")
    assert settings.login().digest == "me:one"
    config.with_suffix(".new").touch(mode=0o600)
    config.with_suffix(".new").write_text('[prod]\n"zookeeper.password" = "me:two"\n')
    config.with_suffix(".new").rename(config)
    assert settings.login().digest == "me:two"
    assert settings == here(profile="prod")
    assert hash(settings) == hash(here(profile="prod"))


# -- secrets


def test_secrets_are_neither_shown_nor_in_what_a_profile_sends_to_executors_I19(config):
    secrets = [name for name in NAMES if is_secret(name)]
    assert {"zookeeper.password", "zookeeper.tls.password", "zookeeper.sasl.password"} <= {*secrets}
    given = Settings.of({**dict.fromkeys(secrets, "hush"), "zookeeper.user": "me", "zookeeper.sasl.user": "me",
                         "zookeeper.tls.cert": "c"})  # fmt: skip
    assert "hush" not in f"{given!r} {given} {given.login()!r}"
    assert pickle.loads(pickle.dumps(given)) == given
    config.write_text('[prod]\n"zookeeper.password" = "me:hush"\n')
    by_profile = Settings.of({"profile": "prod"})
    assert by_profile.here().login().password == "hush"
    assert b"hush" not in pickle.dumps(by_profile) + pickle.dumps(by_profile.here())


def test_a_process_without_profiles_does_not_load_what_reads_them():
    code = (
        "import sys; from pyspark_ledger.base.settings import Settings; Settings().here().login(); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"tomllib", "ssl", "kazoo", "puresasl"} & {*loaded}
    assert profiles.DEFAULT_FILE.startswith("~/.config/")
