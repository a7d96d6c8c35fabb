# SPDX-License-Identifier: AGPL-3.0-only
"""What the config files claim about quantization, held against what is stored."""
