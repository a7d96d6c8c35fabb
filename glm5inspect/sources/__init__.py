# SPDX-License-Identifier: AGPL-3.0-only
"""Where the bytes of a checkpoint come from: file sizes and byte ranges, and nothing about what they mean."""
