#!/usr/bin/env python3
"""Compares the parameters of a checkpoint with those of a vectors file (or of another checkpoint), by hand:
check_h5.py run/checkpoints/step-00000000.h5 ../vectors/mixtral.h5. Prints the norm-wise distance of each tensor; exit code
1 where names or shapes differ or a distance exceeds --tolerance."""

import argparse
import sys

import h5py
import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("reference")
    parser.add_argument("--group", default="params", help="group of the reference (default params)")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()
    bad = 0
    with h5py.File(arguments.checkpoint) as a, h5py.File(arguments.reference) as b:
        mine, theirs = a["params"], b[arguments.group]
        for name in sorted(set(mine) | set(theirs)):
            if name not in mine or name not in theirs:
                verdict = "only in " + (arguments.checkpoint if name in mine else arguments.reference)
            elif mine[name].shape != theirs[name].shape:
                verdict = f"shape {mine[name].shape} and {theirs[name].shape}"
            else:
                x, y = mine[name][()].astype(np.float64), theirs[name][()].astype(np.float64)
                distance = np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30)
                verdict = None if distance <= arguments.tolerance else f"distance {distance:.2e}"
                print(f"{name} {x.shape}: {distance:.2e}")
            if verdict:
                print(f"{name}: {verdict}", file=sys.stderr)
                bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
