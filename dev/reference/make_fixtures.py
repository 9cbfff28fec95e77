"""make_fixtures.py - writes test/fixtures/*.safetensors: what PyTorch and transformers compute for a tiny model of each
family. test/parity_test.cu compares this program with them, so that tests need no Python. To make them again, where
there are torch, transformers and safetensors:

    python dev/reference/make_fixtures.py

One file a model: config.json as transformers writes it (in the metadata, with versions and AdamW's numbers);
weights.NAME; ids (B, T + 1); logits (B * T, V), loss, grad.NAME; adamw.losses, before each of ten steps that decay
matrices alone and clip nothing. Computed in float64, stored rounded to float32; the weights are float32 exactly.
"""
import json
import pathlib
import tempfile
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from truth import exact, in_float64, measure, relative_error

FOLDER = pathlib.Path(__file__).parents[2] / "test" / "fixtures"
# eps is large: a gradient that is zero but for rounding, such as that of GPT-2's key bias, must not become a step.
ADAMW = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 0.001, "weight_decay": 0.1}
STEPS, BATCH = 10, 2

# No two sizes are equal, and no number is the default of its class.
GPT2 = dict(vocab_size=41, n_positions=16, n_embd=18, n_layer=2, n_head=3, layer_norm_epsilon=2e-3,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
QWEN2 = dict(vocab_size=41, max_position_embeddings=64, hidden_size=24, intermediate_size=22, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=2e-3, tie_word_embeddings=True,
             bos_token_id=None, eos_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 150.0})
LLAMA = QWEN2 | dict(hidden_size=20, head_dim=8, tie_word_embeddings=False)
# Wavelengths of 6, 20, 63 and 199 positions: the first is kept, the second lies on the ramp, two are stretched.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 40}
MODELS = {                                             # configuration, T
    "gpt2": (GPT2Config(**GPT2), 12),
    "gpt2-untied": (GPT2Config(**GPT2 | dict(tie_word_embeddings=False, n_inner=30)), 12),
    "llama": (LlamaConfig(**LLAMA), 64),
    "llama-options": (LlamaConfig(**LLAMA | dict(attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3)), 12),
    "qwen2": (Qwen2Config(**QWEN2), 12),
    "qwen3": (Qwen3Config(**LLAMA), 12),
    "mistral": (MistralConfig(**LLAMA | dict(sliding_window=4)), 12),
}


def build(config):
    """The model with noise for weights, large enough that every gain, bias, query and key matters."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=random)
            gain = p.dim() == 1 and name.endswith("weight")
            p.copy_(1 + 0.2 * noise if gain else 0.3 * noise)
    return model


def adamw_losses(model, ids):
    groups = [{"params": [p for p in model.parameters() if (p.dim() == 2) == matrix], "weight_decay": decay}
              for matrix, decay in ((True, ADAMW["weight_decay"]), (False, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
    losses = []
    for _ in range(STEPS):
        losses.append(float(measure(model, ids)["loss"]))
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def config_text(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return (pathlib.Path(folder) / "config.json").read_text()


def sort_header(path):
    """save_file puts the metadata in another order each time; sorted, the same numbers are the same file."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode().ljust(end - 8)
    assert len(header) == end - 8
    path.write_bytes(data[:8] + header + data[end:])


def make(name, config, T):
    ids = torch.randint(config.vocab_size, (BATCH, T + 1), generator=torch.Generator().manual_seed(2))
    plain = build(config)
    tensors = {"weights." + n: p.detach().clone() for n, p in plain.named_parameters()}
    tensors["ids"] = ids.to(torch.int32)
    model = in_float64(plain)
    with exact():
        results = measure(model, ids)
        losses = adamw_losses(model, ids)
    for what, value in measure(plain, ids).items():    # float32 agrees within rounding: exact() changed nothing else
        assert relative_error(results[what], value) < 3e-5, (name, what, relative_error(results[what], value))
    for what, value in results.items():
        tensors[what if what in ("logits", "loss") else "grad." + what] = value.float()
    tensors["adamw.losses"] = losses.float()
    metadata = {"config.json": config_text(plain), "torch": torch.__version__,
                "transformers": transformers.__version__} | {k: str(v) for k, v in ADAMW.items()}
    if getattr(config, "sliding_window", None):
        config.sliding_window = None
        unlimited = measure(build(config), ids)["logits"]
        assert relative_error(results["logits"], unlimited) > 0.01, "the window does not act"
    path = FOLDER / (name + ".safetensors")
    save_file(tensors, path, metadata)
    sort_header(path)
    print(f"{path.name}: {path.stat().st_size} bytes, loss {float(results['loss']):.4f}, after {STEPS - 1} steps "
          f"{float(losses[-1]):.4f}")


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    FOLDER.mkdir(exist_ok=True)
    for name, (config, T) in MODELS.items():
        make(name, config, T)
