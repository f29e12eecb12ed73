"""TensorFlow's GradientTape."""

from __future__ import annotations

from benchmarks.contestants.base import Contestant, Entry
from benchmarks.words import EPSILON, Words, scan_by_loop
from benchmarks.workloads import Workload


class TensorFlow(Contestant):
    name = "TensorFlow GradientTape"

    def __init__(self) -> None:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.tf = tf

        def layer_norm(x, scale, shift):
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return tf.nn.batch_normalization(x, mean, variance, shift, scale, EPSILON)

        def attention(q, k, v):
            return tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * q.shape[-1] ** -0.5), v)

        self.words = Words(
            tanh=tf.tanh,
            sum=tf.reduce_sum,
            mean=tf.reduce_mean,
            sigmoid=tf.sigmoid,
            relu=tf.nn.relu,
            gelu=lambda x: tf.nn.gelu(x, approximate=True),
            layer_norm=layer_norm,
            attention=attention,
            reshape=tf.reshape,
            transpose=tf.transpose,
            conv=lambda x, w: tf.nn.conv2d(x, w, 1, "VALID"),
            max_pool=lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"),
            image_mean=lambda x: tf.reduce_mean(x, axis=(1, 2)),
            scan=scan_by_loop(lambda: self.words, tf.unstack, tf.stack),
        )

    def prepare(self, workload: Workload) -> Entry:
        tf, words = self.tf, self.words
        given, data = self.arrays(workload)
        params = [tf.Variable(param) for param in given]
        data = [tf.constant(x) for x in data]

        def forward():
            with tf.GradientTape():
                return workload.run(words, params, data).numpy()  # on CPU a look, not a copy: it waits

        def gradient():
            with tf.GradientTape() as tape:
                out = workload.run(words, params, data)
            gradients = tape.gradient(out, params)
            tf.test.experimental.sync_devices()
            return out, gradients

        return Entry(gradient, forward)

    def numbers(self, result):
        out, gradients = result
        return out.numpy(), [self.tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
