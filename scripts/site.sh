#!/usr/bin/env bash
# Builds the documentation as a site in target/site, and checks every link in it. The pages stay where they are: they are laid
# out in a folder of the build, with what they link to outside of docs/.
set -euo pipefail
cd "$(dirname "$0")/.."
mdbook=$(scripts/mdbook.sh)
out=${CARGO_TARGET_DIR:-target}/site
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/src"
cp docs/book.toml "$stage/"
# Chapters from outside of docs/, and files that pages link to.
linked=(README.md ARCHITECTURE.md CHANGELOG.md LICENSE docs sagas effects proto examples tests/golden/envelopes
  workers/python/README.md workers/typescript/README.md workers/python/examples workers/typescript/examples)
git ls-files -z --cached --others --exclude-standard -- "${linked[@]}" | grep -zv '/book.toml$' |
  xargs -0 cp --parents -t "$stage/src"
# SUMMARY.md names pages as seen from docs/; mdBook wants them as seen from the folder above.
sed -E 's#\]\(\.\./#](#; t; s#\]\(#](docs/#' docs/SUMMARY.md >"$stage/src/SUMMARY.md"
rm "$stage/src/docs/SUMMARY.md"
"$mdbook" build --dest-dir "$stage/site" "$stage"
python3 - "$stage/site" <<'CHECK'
import html.parser, pathlib, sys, urllib.parse

site = pathlib.Path(sys.argv[1])

class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        for name in ("id", "name"):
            if attributes.get(name):
                self.ids.add(attributes[name])
        link = attributes.get("href") if tag == "a" else attributes.get("src")
        if link:
            self.links.append(link)

pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "toc.html"}
broken, links = [], 0
for path, page in pages.items():
    if path.name in ("print.html", "404.html"):
        continue  # the same texts from another place
    for link in page.links:
        link = urllib.parse.urlsplit(link)
        if link.scheme or link.netloc:
            continue
        links += 1
        target = (path.parent / urllib.parse.unquote(link.path)).resolve() if link.path else path
        anchor = urllib.parse.unquote(link.fragment)
        if not target.exists():
            broken.append(f"{path.relative_to(site)}: {link.geturl()}")
        elif anchor and target in pages and anchor not in pages[target].ids:
            broken.append(f"{path.relative_to(site)}: no heading {link.geturl()}")
print(f"{len(pages)} pages, {links} links")
if broken:
    sys.exit("broken links:\n" + "\n".join(sorted(set(broken))))
CHECK
rm -rf "$out"
mkdir -p "$(dirname "$out")"
cp -r "$stage/site" "$out"
echo "$out/index.html"
