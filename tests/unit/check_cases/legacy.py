"""Keras 2 through and through."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # expect: tf-keras
import tf_keras  # expect: tf-keras
