"""Heads: capture of hidden states, quantization by them, draft vocabularies, and the directories they end in.

What a variant with a rewritten head holds, beside everything of its source:

A quantized module X (`lm_head` by its name in the source, also `*.embed_tokens` and linears of `mtp.*` when asked for)

    X.weight_packed   I32 [rows, columns * bits / 32]  codes + 2^(bits-1), the first in the lowest bits
    X.weight_scale    BF16 [rows, columns / 128]       weight = code * scale, symmetric, no zero point
    X.weight_shape    I64 [2]                          rows, columns

and no `X.weight`. A tied head is stored as `lm_head.*` beside the embedding, and `tie_word_embeddings` becomes false,
in `text_config` too. Tensors that the source does not have are in `model_extra_tensors.safetensors`; there is always an
index. Files without a changed tensor are hard links to the source.

config.json, and quantization_config.json where the source has one: `quantization_config` of compressed-tensors with
the groups `draftmill_head` (targets `re:.*lm_head$`, which `mtp.draft_lm_head` matches too), `draftmill_embeddings` and
`draftmill_mtp` before any other, each with `format: pack-quantized`, num_bits 4 or 8, type int, strategy group,
group_size 128; `format` is pack-quantized where all groups are, else mixed-precision. `ignore` names no such module.

A draft vocabulary of an MTP block

    mtp.draft_lm_head.weight_packed, .weight_scale, .weight_shape   the head's rows of the draft ids, bit for bit
    mtp.draft_lm_head.weight                                        instead, where the head is not quantized
    lm_head.weight                                                  beside it where the head is tied: the embedding
    mtp.draft_vocab_ids                                             I64 [size], sorted, unique, inside the vocabulary

with `mtp_draft_vocab_size` and `mtp_draft_vocab_ids` (the list) at the top of config.json. Logit k of the draft head is
that of token mtp.draft_vocab_ids[k]. The layout `community` adds mtp_draft_vocab_ids.pt, an int64 tensor. (vLLM 0.32
builds an untied head for a checkpoint with any tensor named *lm_head.weight, whatever its configuration says, and ties
it again if it loaded the embedding. With no lm_head.weight it would load nothing, and say nothing.)

A draft vocabulary of EAGLE3, DFlash and DSpark: `lm_head.weight`, and DSpark's `markov_head.markov_w2.weight`, with the
rows of the draft ids alone; `d2t` I64 [size], target id = k + d2t[k]; `t2d` BOOL [vocabulary]; `draft_vocab_size` in
config.json.

`head.json` is the record: draftmill.heads.HeadPlan.
"""
