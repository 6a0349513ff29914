"""Text from outside, made fit to be shown."""


def without_surrogates(value: object) -> object:
    """This nest of lists, tuples and dicts with half surrogate pairs written out: argv, names of files and messages of
    exceptions that are not UTF-8. No encoder takes them, and one odd byte must not end a run."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [without_surrogates(item) for item in value]
        case _:
            return value
