"""Small networks are slower on several threads than on one, and tests run side by side."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
