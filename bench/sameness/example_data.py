"""What public examples would load from a hub, made here: tiny random models, tokenizers, texts, metrics.

A folder with the name that the example asks for, in the folder in which it runs, is found before any hub. Called by
public_examples.py; needs transformers for models alone.
"""

import csv
import json
import random
from pathlib import Path

_WORDS = ("the", "a", "red", "blue", "old", "cat", "dog", "house", "sees", "likes", "finds", "and", "not", "near", ".")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_METRIC = '''"""Accuracy and F1, counted here: the examples ask for a metric by name."""
import datasets
import evaluate


class Counted(evaluate.Metric):
    def _info(self):
        kind = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="counted", citation="", inputs_description="", features=kind)

    def _compute(self, predictions, references):
        right = sum(p == r for p, r in zip(predictions, references))
        both = sum(p == r == 1 for p, r in zip(predictions, references))
        ones = sum(predictions) + sum(references)
        return {"accuracy": right / len(references), "f1": 2 * both / ones if ones else 0.0}
'''


def put(what: str, folder: Path) -> None:
    """Raises KeyError for a name that is none."""
    _MADE[what](folder)


def _sentences(number: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(_WORDS, k=drawn.randint(5, 12))) for _ in range(number)]


def _pairs(number: int, seed: int) -> list[dict[str, object]]:
    first, second = _sentences(number, seed), _sentences(number, seed + 1)
    return [
        {"sentence1": one, "sentence2": other, "label": int(one[0] > other[0]), "idx": number}
        for number, (one, other) in enumerate(zip(first, second, strict=True))
    ]


_CARD = """---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: mrpc/train.jsonl
  - split: validation
    path: mrpc/validation.jsonl
dataset_info:
  config_name: mrpc
  features:
  - name: sentence1
    dtype: string
  - name: sentence2
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': not_equivalent
          '1': equivalent
  - name: idx
    dtype: int32
---
"""


def _glue(folder: Path) -> None:
    home = folder / "nyu-mll/glue"
    (home / "mrpc").mkdir(parents=True)
    (home / "README.md").write_text(_CARD)
    for split, number in (("train", 320), ("validation", 72)):
        rows = _pairs(number, number)
        (home / f"mrpc/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with (folder / f"{split}.csv").open("w") as stream:
            named = [{name: row[name] for name in ("sentence1", "sentence2", "label")} for row in rows]
            writer = csv.DictWriter(stream, list(named[0]))
            writer.writeheader()
            writer.writerows(named)


def _metrics(folder: Path) -> None:
    for name in ("glue", "accuracy"):
        (folder / name).mkdir()
        (folder / name / f"{name}.py").write_text(_METRIC)


def _tokenizer(folder: Path, *, ends: str) -> int:
    """Whole words. `ends`: the token at the end of a text. How many tokens there are."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate((*_SPECIAL, *_WORDS))}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends == "[SEP]":
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=64,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        eos_token=ends,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"][:: 1 if ends == "[SEP]" else 2],
    ).save_pretrained(folder)
    return len(numbers)


def _bert(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertForMaskedLM

    home = folder / "bert-base-cased"
    size = _tokenizer(home, ends="[SEP]")
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=size, max_position_embeddings=64, **shape)).save_pretrained(home)


def _gpt2(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    home = folder / "tiny-gpt2"
    size = _tokenizer(home, ends="[PAD]")
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(
        GPT2Config(vocab_size=size, n_positions=64, n_embd=16, n_layer=1, n_head=2, **ends)
    ).save_pretrained(home)


def _text(folder: Path) -> None:
    (folder / "text.txt").write_text("\n".join(_sentences(400, 5)) + "\n")


def _wikitext(folder: Path) -> None:
    """Lightning's demo: 4,000 pieces of 35 words are kept for evaluation, the rest is for training."""
    (folder / "data").mkdir()
    words = random.Random(7).choices(_WORDS, k=35 * 4090)
    lines = (" ".join(words[at : at + 20]) for at in range(0, len(words), 20))
    (folder / "data/wikitext-2.txt").write_text("\n".join(lines) + "\n")


def _word_folder(folder: Path) -> None:
    (folder / "wikitext").mkdir()
    for number, split in enumerate(("train", "valid", "test")):
        (folder / f"wikitext/{split}.txt").write_text("\n".join(_sentences(500 if number == 0 else 100, number)) + "\n")


def _letters(path: Path) -> None:
    path.write_text("O God, O God!\n" + "\n".join(_sentences(300, 9)) + "\n")


_MADE = {
    "glue": _glue,
    "metrics": _metrics,
    "bert": _bert,
    "gpt2": _gpt2,
    "text": _text,
    "wikitext": _wikitext,
    "word-folder": _word_folder,
    "input": lambda folder: _letters(folder / "input.txt"),
    "shakespeare": lambda folder: _letters(folder / "data/shakespeare_char/input.txt"),
}
