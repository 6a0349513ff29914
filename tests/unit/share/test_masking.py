"""What leaves this machine has no secret in it, in whatever form it is spelt; and what is none stays."""

import html
import io
import json
import tarfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.cli.share import packing
from everstep.cli.share.packing import Bundle
from everstep.journal.beside.secrets import secret_values
from everstep.report.handing.masking import Mask

SECRETS = [
    "API_KEY=abcdef123",
    '{"token": "abcdef123"}',
    '{\\"secret\\": \\"abcdef123\\"}',
    "--api-key abcdef123 --lr 3",
    '["--hf-token", "abcdef123"]',
    "postgres://user:abcdef123@host/db",
    "Authorization: Bearer abcdef123",
    "password: abcdef123",
    'secret = "abc abcdef123 x"',
    "https://bucket/x?X-Amz-Signature=abcdef123&a=1",
    "http://127.0.0.1:80/?token=abcdef123",
    "hf_abcdef123abcdef123abcdef123",
    "sk-abcdef123abcdef123abcdef123",
    "https://hooks.slack.com/services/T0/abcdef123",
    "-----BEGIN RSA PRIVATE KEY-----\nabcdef123\n-----END RSA PRIVATE KEY-----",
    "WANDB_API_KEY='abcdef123'",
]
S = "Zq8vN3kLw0xY7tRb"
FORMS = [
    f"PGPASSWORD={S}", f"SSHPASS={S}", f"MYSQL_PWD={S}", f"dbPassword: {S}", f"accessToken={S}",
    f'"clientSecret": "{S}"',
    f"AccountKey={S}==;EndpointSuffix=core", f"SharedAccessKey={S}", f"https://x.blob/c?sv=1&sig={S}%3D", f"apikey={S}",
    f"apiKey={S}", f"X-Api-Key: {S}", f"Authorization: Bearer {S}", f"Authorization: AWS4-HMAC-SHA256 Credential={S}",
    f"HF_TOKEN={S}", f"hf_{S}{S}", f"postgres://u:{S}@h/db", f"redis://:{S}@h/0", f"password {S}", f"password is {S}",
    f"passwd='{S} two words'", f"--password={S}", f"--hf-token {S}", f"['--hf-token', '{S}']", f"mysql -p{S}",
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{S}\n-----END PGP PRIVATE KEY BLOCK-----",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\\n{S}\\n-----END OPENSSH PRIVATE KEY-----", f"npm_{S}{S}", f"pypi-{S}{S}",
    f"{S}\n-----END RSA PRIVATE KEY-----", f"log\n{S}==\\n{S}\\n-----END PRIVATE KEY-----", f"dckr_pat_{S}",
    f"AWS_SECRET_ACCESS_KEY={S}", f"aws_secret_access_key = {S}", f"EVERSTEP_JOIN_TOKEN={S}", f"join token: {S}",
    f"Proxy-Authorization: Basic {S}", f"Set-Cookie: sid={S}", f"wandb: api key: {S}", f"ya29.{S}{S}", f"GOCSPX-{S}",
    f"r8_{S}{S}", f"https://discord.com/api/webhooks/1/{S}", f"https://h.webhook.office.com/webhookb2/{S}",
    f"token\u00a0=\u00a0{S}", f"TOKEN\t:\t{S}", f"token:    {S}", f"Password:\n{S}", f"WANDB_API_KEY:{S}",
    f"machine h login u password {S}",
]  # fmt: skip
HARMLESS = [
    "pad=1 monkey: 5 primary_key: layers.0",
    "password authentication failed for user bob",
    "missing key: layers.0.weight",
    "run -p8080 -path/to/a/long/file2.py",
    "compassion: 2 passes: 3",
    "rank 1 on n0 raised KeyError: 'labels'",
    '{"max_tokens": 1024, "token": 55, "password": null}',
    "tokens per second: 5000",
    "the token is lost: nothing",
    "author: Bob; authority=x",
    "step 48,212 of run r1a2b",
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_secret_is_hidden(text):
    assert "abcdef123" not in Mask()(text)


@pytest.mark.parametrize("text", FORMS)
def test_every_form_in_which_people_print_a_secret_is_hidden(text):
    assert S not in Mask()(text)


@given(
    st.sampled_from(["", "PG", "db", "my_", "X-", "the ", "azure.storage", "ssh"]),
    st.sampled_from(["password", "Passwd", "PASSPHRASE", "secret", "accessToken", "api_key", "accountKey"]),
    st.sampled_from(["=", ":", " = ", ": ", ":     ", "\u00a0=\u2003", "\t:\n", "': '", '": "']),
)
def test_a_name_counts_wherever_it_stands_in_a_word(before, name, between):
    assert S not in Mask()(f"x {before}{name}{between}{S}")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_stays(text):
    assert Mask()(text) == text


@given(st.text(min_size=6, max_size=30).filter(lambda value: not value.isspace() and "*" not in value))
def test_a_known_value_is_hidden_however_json_spells_it(value):
    mask = Mask([value])
    for text in (value, f"x{value}y", json.dumps({"a": value}), json.dumps({"a": value}, ensure_ascii=False)):
        hidden = mask(text)
        assert value not in hidden
        assert json.dumps(value)[1:-1] not in hidden
    assert value not in json.loads(json.dumps(mask.deep({"a": [value]})))["a"][0]


def test_json_stays_json():
    text = json.dumps({"token": "abcdef123", "n": 3, "env": {"API_KEY": "abcdef"}, "path": "/x/y"})
    assert json.loads(Mask()(text)) == {"token": "***", "n": 3, "env": {"API_KEY": "***"}, "path": "/x/y"}


def test_ten_megabytes_of_a_hostile_line_take_seconds_at_most():
    begun = time.process_time()
    Mask(["nothing-of-it"])("eyJ" * 1_000_000 + "a_" * 1_000_000 + "-----BEGIN PRIVATE KEY-----" * 50_000)
    assert time.process_time() - begun < 20.0


def test_values_of_the_run_and_of_the_shell_are_known(tmp_path):
    (tmp_path / "token").write_text("run-token-1\n")
    (tmp_path / "variables").mkdir()
    (tmp_path / "variables/v1.json").write_text('{"DATA": "s3-password"}')
    (tmp_path / "nodes/n0").mkdir(parents=True)
    (tmp_path / "nodes/n0/credentials.json").write_text('{"key": ["node-key"]}')
    found = secret_values(tmp_path, {"MY_SECRET": "shell-value", "HOME": "/root", "PWD": "/work"})
    assert found == {"run-token-1", "s3-password", "node-key", "shell-value"}


def test_a_bundle_lists_what_is_masked_and_never_follows_a_link(tmp_path, monkeypatch):
    (tmp_path / "key").write_text("the private part")
    (tmp_path / "stdout.log").symlink_to(tmp_path / "key")
    (tmp_path / "stderr.log").write_bytes(b"x" * 1000 + b"\nvalue my_<secret>_1 \xff\n")
    (tmp_path / "large").write_bytes(b"y" * 300)
    monkeypatch.setattr(packing, "TAIL_BYTES", 100)
    monkeypatch.setattr(packing, "MOST_BYTES", 200)
    bundle = Bundle("b", Mask(["my_<secret>_1"]))
    for name in ("stdout.log", "stderr.log"):
        bundle.add_file(tmp_path / name, name, only_tail=True)
    bundle.add_file(tmp_path / "large", "large")
    bundle.add_file(tmp_path / "none", "none")
    bundle.add_json("status.json", {"why": "my_<secret>_1", "password": "12345"})
    whole = bundle.whole()
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        files = {member.name: tar.extractfile(member).read().decode() for member in tar}
    assert set(files) == {"b/stderr.log", "b/status.json", "b/LISTING.txt"}
    assert not any(form in text for text in files.values() for form in ("my_<secret>_1", html.escape("my_<secret>_1")))
    assert "12345" not in files["b/status.json"]
    listing = files["b/LISTING.txt"]
    assert "a link" in listing
    assert "1 place masked" in listing
    assert "the private part" not in str(files)
    assert len(files["b/stderr.log"]) <= 101
