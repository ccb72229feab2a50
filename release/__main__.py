"""``python3 -m release``: a release, and its air-gap bundle."""

from __future__ import annotations

import argparse
import sys

import strata
from images.buildah import BuildError, say
from release import bundle
from release.release import Release, make
from release.state import ReleaseError

DESCRIPTION = """\
Make a release's files in dist/strata-VERSION: wheel, images as OCI archives, charts with the images' digests, a bill of
materials for each image, release notes, SHA256SUMS. With --bundle also dist/strata-VERSION-bundle.tar for clusters
without internet. What is unchanged since the last run stays.

The version is __version__ in engine/strata/__init__.py. The checkout has to be clean, CHANGELOG.md to have a section of
the version, and the commit the tag vVERSION; docs/releasing.md has the steps.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python3 -m release", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--snapshot",
        action="store_true",
        help="of the checkout as it is, in dist/strata-snapshot: to try, not to publish",
    )
    parser.add_argument("--bundle", action="store_true", help="make the air-gap bundle, too")
    parser.add_argument(
        "--model", dest="models", action="append", default=[], metavar="NAME=SOURCE",
        help="a model in the bundle, converted with `strata convert SOURCE`; a store that it made is taken as it is. "
        "May be given several times",
    )  # fmt: skip
    parser.add_argument("--dtype", default="int4", help="bit format of the bundle's models; default: %(default)s")
    given = parser.parse_args()
    if given.models and not given.bundle:
        parser.error("--model is for a bundle: give --bundle, too")
    try:
        models = bundle.parse_models(given.models, given.dtype)
        stores = {model.name: bundle.store(model) for model in models}
        made = Release(strata.__version__, given.snapshot)
        make(made)
        say(f"{made.name} is in {made.folder}")
        if given.bundle:
            say(f"the bundle is {bundle.make(made, stores)}")
    except (ReleaseError, BuildError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
