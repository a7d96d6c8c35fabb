# SPDX-License-Identifier: AGPL-3.0-only
"""Values of small tensors: the faults that headers cannot show. Imported only where somebody asks for values."""
