"""What a file that is not GGUF is instead, told from its first bytes."""

HEAD_BYTES = 64

_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt, ggla as they lie on disk


def describe_foreign(head: bytes) -> tuple[str, str]:
    """What the first HEAD_BYTES bytes of a non-GGUF file show, and what to do about it."""
    text = head.lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model itself", "fetch the model with `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return (
            "is a web page, not a model",
            "the download got an error or a login page: download the file again",
        )
    if len(head) > 9 and head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 1 << 32:
        return "is a safetensors file, not GGUF", "convert the model to GGUF"
    if head.startswith(b"PK\x03\x04"):
        return "is a zip archive or a PyTorch checkpoint, not GGUF", "convert the model to GGUF"
    if head[:4] in _OLD_MAGICS:
        return "is in a format older than GGUF", "convert the original model to GGUF"
    if text.startswith((b"{", b"[")):
        return "is JSON, not a model", "give the path of the .gguf file"
    return (
        f"is not GGUF: it starts with {head[:4]!r}, not b'GGUF'",
        "give the path of a .gguf file",
    )
