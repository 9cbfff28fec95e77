"""truth.py - what PyTorch and transformers say about a batch: logits, loss and every gradient, in double precision.

transformers takes norms, softmax, rotations and the loss in float32 whatever the model's type is. While exact() is open
the name means float64, so that its formulas are followed to the last digit; nothing else about them changes.
"""
import contextlib
import torch
from transformers import AutoModelForCausalLM


@contextlib.contextmanager
def exact():
    float32, to_float = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32 = torch.float = float32
        torch.Tensor.float = to_float


def in_float64(model):
    """The same model; made anew, because the frequencies of its rotations are computed where it is made."""
    with exact():
        other = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager")
    other.load_state_dict(model.state_dict())
    return other.double()


def measure(model, lists):
    """Logits (rows, V), mean loss and gradients of lists of ids: all but the last of each are read, all but the first
    are targets."""
    model.zero_grad()
    logits = torch.cat([model(input_ids=ids[None, :-1], use_cache=False).logits[0] for ids in lists])
    loss = torch.nn.functional.cross_entropy(logits, torch.cat([ids[1:] for ids in lists]))
    loss.backward()
    return {"logits": logits.detach(), "loss": loss.detach()} | {n: p.grad.clone() for n, p in model.named_parameters()}


def relative_error(a, b):
    """max|a-b| / max(max|a|, 1e-3 norm(a) / sqrt(n)), a being the truth."""
    a, b = a.double(), b.double()
    scale = max(a.abs().max(), 1e-3 * a.norm() / a.numel() ** 0.5)
    return float((a - b).abs().max() / scale) if (a != b).any() else 0.0
