import pytest

from phalanx.launcher.redaction import redact


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        ("--api-key X", "--api-key ***"),
        ("--api_key=X --epochs 3", "--api_key=*** --epochs 3"),
        ("--apiKey X", "--apiKey ***"),
        ("-key X", "-key ***"),
        ("--token=X", "--token=***"),
        ("--hf-token X train", "--hf-token *** train"),
        ("--password X", "--password ***"),
        ("--db-password-old X", "--db-password-old ***"),
        ("--secret X", "--secret ***"),
        ("--AWS_SECRET_ACCESS_KEY=X=", "--AWS_SECRET_ACCESS_KEY=***"),
        ("--auth X", "--auth ***"),
        ("--authorization=X", "--authorization=***"),
        ("--basic-auth X", "--basic-auth ***"),
        ("wandb.api_key=X", "wandb.api_key=***"),
        ("+trainer.token=X", "+trainer.token=***"),
        ("--token -X", "--token ***"),
        ("s3://user:X@host/data", "s3://user:***@host/data"),
        ("--data redis://:X@host", "--data redis://:***@host"),
        ("--data=https://u:X@X@host/d?a=1", "--data=https://u:***@host/d?a=1"),
        ("https://host/d?a=1&X-Amz-Signature=X&b=2", "https://host/d?a=1&X-Amz-Signature=***&b=2"),
    ],
)
def test_what_looks_like_a_secret_is_redacted(words, recorded):
    assert redact(words.split()) == recorded.split()


def test_a_bearer_token_in_one_word_is_redacted():
    assert redact(["--header", "Accept: a, X: Bearer abc"]) == [
        "--header",
        "Accept: a, X: Bearer ***",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "train.py --epochs 3 -v --lr=0.1",
        "--max-tokens 512 --tokenizer bpe --token-length 3",
        "--keyboard qwerty --monkey=1 --keys-per-row 3",
        "--author Ada --authors=Ada,Grace",
        "--token-file /run/token --password-file=/run/password",
        "--use-auth --epochs 3",
        "--token",
        "https://host:80/a@b gs://bucket/a:b@c",
        "https://host/d?page=2",
        "",
    ],
)
def test_all_other_words_are_recorded(words):
    assert redact(words.split()) == words.split()
