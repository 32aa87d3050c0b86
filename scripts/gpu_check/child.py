"""What the children have in common: a fault that is somebody's to mend is a row, no traceback."""

import json
from collections.abc import Callable

from flexinfer.errors import FlexInferError


def run(main: Callable[[], None]) -> None:
    """Of anything else, torch's own errors among them, the last lines are shown as they are."""
    try:
        main()
    except FlexInferError as error:
        print(json.dumps({"error": f"{error} ({error.hint})" if error.hint else str(error)}))
    except OSError as error:  # no space left for a model, say
        print(json.dumps({"error": f"{error.filename or 'a file'}: {error.strerror}"}))
