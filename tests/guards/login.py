"""Who we are for ZooKeeper, and whom it is that we talk to."""

from __future__ import annotations

from tests.guards.guard import Guard

_LOGIN = "zk_metadata/test_zk_login.py::"
_SETTINGS = "base/test_settings.py::"

GUARDS = [
    Guard(
        "login/the-name-of-the-host-is-compared",
        "zk_metadata/tls.py",
        '    context.check_hostname = tls.verify == "full"\n',
        instead="    context.check_hostname = False\n",
        why="Whoever has any certificate of the same authority could pretend to be ZooKeeper (I19).",
        tests=(_LOGIN + "test_a_certificate_of_another_host_is_refused_unless_names_are_not_compared_I19",),
    ),
    Guard(
        "login/what-is-decrypted-is-ready",
        "zk_metadata/logging_in.py",
        "        if not decrypted:\n",
        instead="        if decrypted or not decrypted:\n",
        why="An answer that came in one record of TLS with another would wait for the next ping (I19).",
        tests=(_LOGIN + "test_what_is_decrypted_already_does_not_wait_for_more_from_the_network",),
    ),
    Guard(
        "login/a-profile-is-looked-up-for-each-connection",
        "zk_metadata/session.py",
        "            self.client.auth_data = set(auth_data(login) or ())\n",
        instead="",
        why="A password that was changed in a profile would not be used by processes that run (I19).",
        tests=(_LOGIN + "test_a_password_that_changes_in_a_profile_is_used_from_the_next_connection_on_I19",),
    ),
    Guard(
        "login/a-refused-login-is-told-at-once",
        "zk_metadata/logging_in.py",
        "EXCEPTIONS[LoginRequired.code] = LoginRequired\n",
        instead="",
        why="kazoo's thread would end with a traceback, and who waits would only hear of a time-out (I19).",
        tests=(_LOGIN + "test_who_logs_in_wrongly_or_not_at_all_is_told_at_once_I19",),
        hangs=True,
    ),
    Guard(
        "login/secrets-are-only-for-their-owner",
        "base/profiles.py",
        "    _check_private(file, status, profiles)\n",
        instead="",
        why="Nobody is to find out late that everybody on the machine could read a password (I19).",
        tests=(_SETTINGS + "test_a_file_with_secrets_that_others_can_read_is_refused_I19",),
    ),
    Guard(
        "login/a-user-has-no-password-of-another",
        "base/settings.py",
        "            rest.pop(password, None)\n",
        instead="            pass\n",
        why="ZooKeeper's digest scheme takes any pair: what is made would belong to a user whom nobody knows (I19).",
        tests=(_SETTINGS + "test_a_user_does_not_get_the_password_of_another_I19",),
    ),
    Guard(
        "login/a-server-that-answers-late-is-asked-again",
        "zk_metadata/trouble.py",
        "        if not self._refusals and SYSTEM_CLOCK.monotonic() >= self._look_again_at:\n",
        instead="        if not self._refusals and not self._look_again_at:\n",
        why="On a busy machine nobody would hear what is wrong before his time is over (I19).",
        tests=(_LOGIN + "test_a_server_that_says_nothing_at_first_is_asked_again_what_is_wrong_I19",),
        hangs=True,
    ),
    Guard(
        "login/what-is-judged-is-what-is-read",
        "base/profiles.py",
        "        status = os.fstat(opened)\n",
        instead="        status = os.stat(file, follow_symlinks=False)\n",
        why="Behind a link that is private, or a file that was replaced, everybody could read the password (I19).",
        tests=(_SETTINGS + "test_a_link_is_followed_and_what_it_leads_to_must_be_private_I19",),
    ),
]
