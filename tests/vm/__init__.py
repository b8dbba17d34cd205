# SPDX-License-Identifier: Apache-2.0
"""Tests on kernels and devices that the host does not have, in QEMU.

kernels finds and unpacks Debian's kernel packages, initramfs makes what they boot into, guest says what a machine has,
boot runs one to its end, matrix runs this project's own suites in one guest after another. inside/ is what runs there.
"""
