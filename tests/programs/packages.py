"""Losses of optax and modules of equinox."""

import equinox as eqx
import jax
import numpy as np
import optax

from tests.programs import Draw, program

draw = Draw(6)
logits, targets, probabilities = draw.normal(3, 4), draw.normal(3, 4), draw.unit(3, 4)
probabilities = probabilities / probabilities.sum(-1, keepdims=True)
labels = draw.ints(3, high=4)
LOSSES = {
    "l2_loss": (logits, targets), "squared_error": (logits, targets), "huber_loss": (logits, targets),
    "log_cosh": (logits, targets), "cosine_similarity": (logits, targets), "cosine_distance": (logits, targets),
    "hinge_loss": (logits, draw.ints(3, 4, high=2) * 2.0 - 1), "perceptron_loss": (logits, draw.ints(3, 4, high=2) * 2.0 - 1),
    "sigmoid_binary_cross_entropy": (logits, probabilities), "sigmoid_focal_loss": (logits, probabilities),
    "softmax_cross_entropy": (logits, probabilities), "softmax_cross_entropy_with_integer_labels": (logits, labels),
    "poly_loss_cross_entropy": (logits, probabilities), "kl_divergence": (logits, probabilities),
    "kl_divergence_with_log_targets": (logits, targets), "generalized_kl_divergence": (logits, probabilities),
    "multiclass_hinge_loss": (logits, labels), "multiclass_perceptron_loss": (logits, labels),
    "multiclass_sparsemax_loss": (logits, labels), "sparsemax_loss": (logits, draw.ints(3, 4, high=2) * 1.0),
    "triplet_margin_loss": (logits, targets, draw.normal(3, 4)), "ntxent": (logits, np.array([0, 0, 1])),
    "ctc_loss": (draw.normal(2, 5, 4), draw.ints(2, 5, high=2) * 0.0, draw.ints(2, 3, high=3) + 1, draw.ints(2, 3, high=2) * 0.0),
    "make_fenchel_young_loss": (logits, probabilities),
    "ranking_softmax_loss": (logits, probabilities),
}  # fmt: skip


def loss_of(name):
    if name == "make_fenchel_young_loss":
        return optax.losses.make_fenchel_young_loss(lambda v: jax.nn.logsumexp(v, axis=-1))
    if name == "ranking_softmax_loss":
        return optax.losses.ranking_softmax_loss
    return getattr(optax.losses, name)


@program(LOSSES)
def optax_losses(arguments):
    return {name: loss_of(name)(*given) for name, given in arguments.items()}


# --- modules of equinox ----------------------------------------------------------------------------


is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)


def module_program(name, make, *arguments):
    shapes, static = eqx.partition(eqx.filter_eval_shape(make, jax.random.key(0)), is_shape)
    parameters = jax.tree.map(lambda p: 0.5 * draw.normal(*p.shape), shapes)  # jax's draws: a program for each shape

    @program(parameters, *arguments, name=name)
    def run(parameters, *arguments):
        return eqx.combine(parameters, static)(*arguments)


with jax.enable_x64(True):
    module_program("equinox_mlp", lambda k: eqx.nn.MLP(3, 2, 4, 2, key=k), draw.normal(3))
    module_program("equinox_conv", lambda k: eqx.nn.Conv2d(2, 3, 3, padding=1, groups=1, key=k), draw.normal(2, 5, 5))
    module_program("equinox_gru_cell", lambda k: eqx.nn.GRUCell(3, 4, key=k), draw.normal(3), draw.normal(4))
    module_program("equinox_layer_norm", lambda k: eqx.nn.LayerNorm(4), draw.normal(4))
    module_program("equinox_attention", lambda k: eqx.nn.MultiheadAttention(2, 4, key=k), *[draw.normal(3, 4)] * 3)
    module_program("equinox_max_pool", lambda k: eqx.nn.MaxPool2d(2, 2), draw.normal(2, 6, 6))
