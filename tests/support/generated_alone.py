"""Each prompt alone through transformers' own `generate`; run by a Python that has it: `generated_alone.py MODEL`.

Reads `[[prompt, tokens], …]` on standard input, and writes the list of what each came to.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="float32")
model.generation_config.eos_token_id = None
answers = []
for prompt, tokens in json.load(sys.stdin):
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    made = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    answers.append(made[0, len(prompt) :].tolist())
json.dump(answers, sys.stdout)
