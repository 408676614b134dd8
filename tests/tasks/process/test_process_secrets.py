"""Which values are masked, and how."""

from __future__ import annotations

from tasks.process.secrets import mask_secrets

ENV = {
    "HF_TOKEN": "hf_longer_secret",
    "AWS_SECRET_ACCESS_KEY": "hf_longer",  # a prefix of another secret: the longer one goes first
    "db_password": "pass phrase",
    "MY_SECRET": "1",
    "TOKENIZERS_PARALLELISM": "false value",
    "EMPTY_KEY": "",
    "GITHUB_PAT": "ghp_personal",
    "SMTP_PASS": "mail secret",
    "GOOGLE_CREDENTIALS": '{"private": 1}',
    "SLACK_WEBHOOK_URL": "https://hooks.example/T0/B1/xyz",
    "COMPAT": "compatible",
    "PATH": "/usr/local/bin",
}


def test_values_of_secret_names_are_masked() -> None:
    text = "a hf_longer_secret b hf_longer c pass phrase d 1 e false value"
    assert mask_secrets(text, ENV) == "a *** b *** c *** d 1 e false value"


def test_other_names_of_secrets() -> None:
    text = 'ghp_personal mail secret {"private": 1} https://hooks.example/T0/B1/xyz compatible /usr/local/bin'
    assert mask_secrets(text, ENV) == "*** *** *** *** compatible /usr/local/bin"


def test_passwords_in_urls_are_masked() -> None:
    assert mask_secrets("GET s3://user:hunter2@host/x and http://host:80/a@b", {}) == (
        "GET s3://user:***@host/x and http://host:80/a@b"
    )
