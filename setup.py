"""Metadata and dependencies of bigtransfer: the one list of them."""

import pathlib

import setuptools

LINUX_X86 = "platform_system == 'Linux' and platform_machine == 'x86_64'"
NOT_LINUX_X86 = "platform_system != 'Linux' or platform_machine != 'x86_64'"

# The lower bounds are releases that the tests pass with on Python 3.11.
INSTALL_REQUIRES = [
    'absl-py>=2.1',
    'array_record>=0.8',
    'etils[epath]>=1.10',
    'flax>=0.12.8',  # the last release for Python 3.11
    # TFDS prepares data sets with it and does not ask for it.
    'importlib_resources>=6',
    'jax>=0.10.2',  # the last release for Python 3.11
    'matplotlib>=3.9',
    'ml_collections>=1.0',
    'numpy>=2.1',
    'optax>=0.2.8',
    'orbax-checkpoint>=0.12.8',
    'safetensors>=0.5',
    'scipy>=1.14',
    # TensorFlow only reads data here: on x86-64 Linux its wheel without CUDA
    # will do, elsewhere there is only one. 2.20 is the first for Python 3.13.
    f'tensorflow-cpu>=2.20; {LINUX_X86}',
    f'tensorflow>=2.20; {NOT_LINUX_X86}',
    'tensorflow-datasets>=4.9.10',
    'tokenizers>=0.21',
    'tqdm>=4.66',
]

EXTRAS_REQUIRE = {
    # JAX names the libtpu that it was built against; the newest is another.
    'tpu': ['gcsfs>=2025.10', 'jax[tpu]'],
    'plan': ['jax[tpu]'],
    'gpu': ['jax[cuda12]'],
    # Workdirs in buckets of Google Cloud Storage, as gs://.
    'gcs': ['gcsfs>=2025.10'],
    'tensorboard': ['tensorboard', 'tensorboardX>=2.6'],
    'test': [
        'beartype>=0.23',
        'chex>=0.1.92',
        'gcsfs>=2025.10',
        # The compiler of the planner, 213 MB; there is none for others.
        f'jax[tpu]; {LINUX_X86}',
        'jaxtyping>=0.3.11',
        'pytest>=9',
        'pytest-xdist>=3.8',
        'pyyaml>=6',
        'ruff>=0.17',
        'scikit-image>=0.26',  # real photos
        'tensorboardX>=2.6',
    ],
    'colab': ['ipykernel', 'nbclient', 'nbformat'],
    'parity': ['timm', 'torch', 'transformers'],
}

setuptools.setup(
    name='bigtransfer',
    version='0.1.0',
    description='Big Transfer (BiT) ResNets in JAX and Flax',
    long_description=pathlib.Path('README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    license_files=['LICENSE', 'NOTICE'],
    # Python 3.14 waits for TensorFlow.
    python_requires='>=3.11,<3.14',
    packages=setuptools.find_packages(
        include=['bigtransfer*', 'input_pipeline*', 'launch*']
    ),
    package_data={
        'input_pipeline': ['embedded/*'],
        'launch': ['*.sh', '*.txt', 'k8s/*', 'slurm/*'],
    },
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
)
