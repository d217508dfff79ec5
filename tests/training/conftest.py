"""Small networks are slower on several threads than on one, and tests run side by side."""

from __future__ import annotations

import os
import secrets

import torch

torch.set_num_threads(1)

# Ray reads these when it is imported. Nobody else on this machine joins the tests' clusters.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)
