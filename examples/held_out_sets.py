"""Six sets of images with known classes, made from packages of Debian, npm and PyPI: docs/results.md, "Sets that nobody
tuned on".

    mkdir -p packages/emoji packages/skimage
    apt-get download $(python examples/held_out_sets.py --names)
    for file in *.deb; do mkdir packages/${file%%_*}; dpkg -x $file packages/${file%%_*}; done
    npm pack emoji-datasource-google@16.0.0 && tar xzf emoji-datasource-google-16.0.0.tgz -C packages/emoji
    pip download --no-deps scikit-image==0.26.0 && unzip -q scikit_image-0.26.0-*.whl -d packages/skimage
    python examples/held_out_sets.py packages sets    # with fontTools, which matplotlib brings

Which classes there are, and how many images of each, was decided by the names and numbers of files alone.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

FONTS = """
    3270 cardo clear-sans comic-neue hermit dkg-handwriting essays1743 adf-accanthis adf-baskervald adf-berenis
    adf-gillius adf-ikarius adf-irianis adf-libris adf-mekanus adf-oldania adf-romande adf-solothurn adf-switzera
    adf-tribun adf-universalis adf-verana aenigma agave allerta anonymous-pro arapey arkpandora averia-gwf
    averia-sans-gwf averia-serif-gwf b612 bebas-neue beteckna blankenburg breip cabin cabinsketch cantarell
    century-catalogue cherrybomb cmu comfortaa compagnon courier-prime crosextra-caladea crosextra-carlito
    dancingscript dejavu-core dejavu-extra dosis dustin ebgaramond ebgaramond-extra ecolier-court elstob engadget
    eurofurence f500 fantasma fantasque-sans fanwood femkeklaver firacode freefont-ttf georgewilliams
    gfs-artemisia gfs-didot gfs-neohellenic gnutypewriter go gotico-antiqua goudybookletter hack havana humor-sans
    inconsolata isabella jetbrains-mono joscelyn junction junicode jura karla karmilla kaushanscript
    klaudia-berenika kristi lato le-murmure league-mono league-spartan leckerli-one lemonada levien-museum
    levien-typoscript liberation lindenhill linex linuxlibertine lobster lobstertwo manrope millimetre monofur
    monoid mononoki national-park ocr-a ocr-b okolaks oldstandard open-sans opendin opendyslexic osifont paratype
    play prociono quattrocento quicksand radisnoir roadgeek roboto-unhinted roboto-slab routed-gothic rufscript
    sil-andika sil-charis sil-doulos sil-gentiumplus solide-mirage sora staypuft stix summersby tiresias
    tomsontalks train tuffy ubuntu-title urw-base35 vollkorn yanone-kaffeesatz yrsa-rasa oxygen sjfonts lmodern
    texgyre thai-tlwg-ttf
"""
LETTERS = "ABCDEFGHIJ"
CLIPART = (
    "animals", "buildings", "food", "people", "plants", "tools", "transportation", "signs_and_symbols/flags",
    "shapes/arrows", "recreation/music",
)  # fmt: skip
PICTURES = (
    "brick.png", "grass.png", "gravel.png", "cell.png", "coins.png", "hubble_deep_field.jpg", "ihc.png", "moon.png",
    "page.png", "retina.jpg",
)  # fmt: skip


def letters(packages: Path, out: Path) -> None:
    """A to J of 500 fonts, at most 40 of a package; fonts that look alike count once."""
    rng, faces = np.random.default_rng(0), []
    for package in sorted(packages.glob("fonts-*")):
        files = sorted(path for path in package.rglob("*") if path.suffix in (".ttf", ".otf") and not path.is_symlink())
        files = [path for path in files if _has_letters(path)]
        faces += [files[i] for i in sorted(rng.permutation(len(files))[:40])]
    seen: set[bytes] = set()
    for path in (faces[i] for i in rng.permutation(len(faces))):
        try:
            drawn = [_glyph(path, letter) for letter in LETTERS]
        except (OSError, ValueError):
            continue
        look = drawn[0].tobytes() + drawn[6].tobytes()
        if look in seen or len({image.tobytes() for image in drawn}) < len(LETTERS):
            continue
        seen.add(look)
        for letter, image in zip(LETTERS, drawn, strict=True):
            image.save(_made(out / letter) / f"{path.stem}.png")
        if len(seen) == 500:
            break


def _has_letters(path: Path) -> bool:
    from fontTools.ttLib import TTFont

    try:
        known = TTFont(path, lazy=True).getBestCmap()
        return all(ord(letter) in known for letter in LETTERS)
    except Exception:  # whatever a damaged font makes of it
        return False


def _glyph(path: Path, letter: str) -> Image.Image:
    """Black on white, 32 pixels a side, its ink within 24."""
    large = Image.new("L", (400, 400), 0)
    ImageDraw.Draw(large).text((120, 120), letter, 255, font=ImageFont.truetype(str(path), 96))
    if (box := large.getbbox()) is None:
        raise ValueError("blank")
    ink = large.crop(box)
    ink = ink.resize([max(1, round(edge * 24 / max(ink.size))) for edge in ink.size], Image.Resampling.LANCZOS)
    canvas = Image.new("L", (32, 32), 255)
    canvas.paste(Image.eval(ink, lambda value: 255 - value), ((32 - ink.width) // 2, (32 - ink.height) // 2))
    return canvas


def emoji(packages: Path, out: Path) -> None:
    root = packages / "emoji/package"
    for one in json.loads((root / "emoji.json").read_text()):
        if one["has_img_google"] and one["category"] != "Component":
            shutil.copy(root / "img/google/64" / one["image"], _made(out / one["category"]))


def clipart(packages: Path, out: Path) -> None:
    root = next(packages.rglob("openclipart/png"))
    for name in CLIPART:
        for path in sorted((root / name).rglob("*.png")):
            place = _made(out / Path(name).name)
            shutil.copy(path, place / "-".join(path.relative_to(root / name).parts))


def sprites(packages: Path, out: Path) -> None:
    """Figures of Battle for Wesnoth by race, 250 of each at most; `monsters` are of all kinds."""
    rng = np.random.default_rng(0)
    root = next(packages.rglob("core/images/units"))
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and path.name != "monsters"):
        files = sorted(folder.rglob("*.png"))
        if len(files) >= 200:
            for i in sorted(rng.permutation(len(files))[:250]):
                shutil.copy(files[i], _made(out / folder.name) / "-".join(files[i].relative_to(folder).parts))


def patches(packages: Path, out: Path) -> None:
    """Pieces of photographs, micrographs, the sky and a printed page; the class is the picture."""
    rng = np.random.default_rng(0)
    for name in PICTURES:
        image = Image.open(packages / "skimage/skimage/data" / name)
        for number in range(300):
            x, y = int(rng.integers(image.width - 63)), int(rng.integers(image.height - 63))
            image.crop((x, y, x + 64, y + 64)).save(_made(out / Path(name).stem) / f"{number:03}.png")


def faces(packages: Path, out: Path) -> None:
    for number, image in enumerate(np.load(packages / "skimage/skimage/data/lfw_subset.npy")):
        grey = Image.fromarray(np.rint(image * 255).astype(np.uint8))
        grey.save(_made(out / ("face" if number < 100 else "other")) / f"{number:03}.png")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    if sys.argv[1:] == ["--names"]:
        print(" ".join(["openclipart-png", "wesnoth-1.16-data", *(f"fonts-{name}" for name in FONTS.split())]))
    else:
        for make in (letters, emoji, clipart, sprites, patches, faces):
            make(Path(sys.argv[1]), Path(sys.argv[2]) / make.__name__)
