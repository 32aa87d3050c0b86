"""Child: write a model for the other stages."""

import argparse
from pathlib import Path

import child
from models import SHAPES, TYPES, shape_of, write_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--type", choices=TYPES, required=True)
    args = parser.parse_args()
    write_model(args.path, shape_of(args.shape, args.layers), TYPES[args.type])


if __name__ == "__main__":
    child.run(main)
