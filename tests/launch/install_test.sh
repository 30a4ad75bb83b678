#!/usr/bin/env bash
# Installs the build into a new folder, builds tests/launch/install_consumer against it with find_package, and
# trains that program's network on 1 and 3 ranks. The program's commands must know the parts that it registers.
# Builds the programs of launch/examples against it, too, and checks what they print.
#   install_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1
source=$2
cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }  # NAME: its value in the build
# Not a random folder: ccache reuses the programs' objects if no header has changed.
work=$build/install_test
trap 'rm -rf "$work"' EXIT
rm -rf "$work"
mkdir "$work"
# prints REGULAR_EXPRESSION COMMAND ..: the output matches. In a pipeline `grep -q` may end the command by SIGPIPE.
prints() {
  "${@:2}" >"$work/printed" 2>&1 && grep -qE "$1" "$work/printed" || { cat "$work/printed"; return 1; }
}

# build_project SOURCE_FOLDER BUILD_FOLDER, with the build's generator and compiler. -O0 takes the least time to compile.
build_project() {
  cmake -S "$1" -B "$2" -G "$(cache CMAKE_GENERATOR)" -DCMAKE_CXX_COMPILER="$(cache CMAKE_CXX_COMPILER)" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0 -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null && cmake --build "$2"
}

cmake --install "$build" --prefix "$work/prefix" >/dev/null
# The installed program finds the libraries of the build that are outside the repository.
IFS=: read -ra folders < <(readelf -d "$build/bin/lockstep" | sed -n 's/.*PATH).*\[\(.*\)\]$/\1/p') || true
found=$(readelf -d "$work/prefix/bin/lockstep")
for folder in ${folders[@]+"${folders[@]}"}; do
  [[ $folder == "$(cache CMAKE_HOME_DIRECTORY)"/* || $found == *"$folder"* ]] || { echo "$folder is missing in: $found"; exit 1; }
done
# Headers may also go to an absolute folder, outside the prefix.
cmake -DSOURCE="$(cache CMAKE_HOME_DIRECTORY)" -DFOLDER="$work/headers" -DCMAKE_INSTALL_PREFIX="$work/prefix" \
  -P "$source/../../../launch/install_headers.cmake" >/dev/null
[ -f "$work/headers/launch/train/trainer.h" ]
# The examples link Lockstep::train only.
examples=$work/examples
build_project "$source/../../../launch/examples" "$examples" &
build_project "$source" "$work/build" || { wait; exit 1; }
wait $!
consumer=$work/build/consumer
for ranks in 1 3; do
  mpirun --oversubscribe --bind-to none -np "$ranks" "$consumer" train brightness --set "run.dir=$work/run" \
    --set kernels.choose=direct
  tail -n 1 "$work/run/metrics.jsonl" | grep -qE '"test_accuracy":(0\.9[0-9]*|1\.0)[,}]'
done
# The consumer's keys have a registered name more often than those of lockstep.
for name in small_cnn brightness line; do
  [ "$("$consumer" keys | grep -ow $name | wc -l)" -gt "$("$work/prefix/bin/lockstep" keys | grep -ow $name | wc -l)" ]
done
prints "light from dark" "$consumer" why
prints "Say what this program is for" "$consumer" help
prints "2048 samples" "$consumer" plan brightness --set kernels.choose=direct
code=0
"$consumer" plan brightness --set model.name=small_cn 2>"$work/refused" || code=$?
[ $code -eq 78 ]
# Once in the list of names, and once as the suggestion.
[ "$(grep -o "\<small_cnn\>" "$work/refused" | wc -l)" -ge 2 ]
prints Lockstep env OMPI_COMM_WORLD_RANK=0 "$work/prefix/bin/lockstep" info

export OMP_NUM_THREADS=1
ranks() { mpirun --oversubscribe --bind-to none -np "$@"; }
prints "step 50: loss 0\.0" ranks 2 "$examples/own_loop"
prints "accuracy (9[0-9]|100)\." ranks 3 "$examples/own_dataset"
for count in 1 3; do
  own=$(ranks $count "$examples/own_exchange")
  dense=$(ranks $count "$examples/own_exchange" dense)
  [[ $own =~ ^digest\ [0-9a-f]{32}$ && $own = "$dense" ]]
done
python3 -B - "$work/images" <<'PY'
# Grey PNG images in two classes, bright and dark.
import pathlib, struct, sys, zlib
for split, count in (("train", 64), ("test", 32)):
    for label, grey in (("bright", 200), ("dark", 50)):
        folder = pathlib.Path(sys.argv[1]) / split / label
        folder.mkdir(parents=True)
        for i in range(count):
            rows = b"".join(b"\0" + bytes([grey + (i + x) % 40 for x in range(32)]) for _ in range(32))
            chunks = ((b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
            data = b"".join(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
                            for kind, body in chunks)
            (folder / f"{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)
PY
prints "epoch 1: train loss" ranks 2 "$examples/train_folder" "$work/images" 1
# evaluate_export agrees with `lockstep eval`, and every rank ends with the code of an error.
fashion=/usr/share/datasets/fashion-mnist few=$work/few
if [ -f $fashion/train-images-idx3-ubyte.gz ]; then
  python3 -B - $fashion "$few" <<'PY'
# The first images. Each of two ranks evaluates four batches and a part of one.
import gzip, pathlib, struct, sys
fashion, few = map(pathlib.Path, sys.argv[1:])
few.mkdir()
for split, count in ("train", 2560), ("t10k", 950):
    for kind, head, size in ("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1):
        with gzip.open(fashion / f"{split}-{kind}-ubyte.gz") as file:
            data = file.read(head + count * size)
        (few / f"{split}-{kind}-ubyte").write_bytes(data[:4] + struct.pack(">I", count) + data[8:])
PY
  own=(fashion_mnist_cnn --set "data.path=$few" --set kernels.choose=direct --set run.measure_peak=false)
  ranks 2 "$work/prefix/bin/lockstep" train "${own[@]}" --set train.steps=20 --set run.evaluate_every=0 \
    --set "run.dir=$work/export" --export "$work/own.safetensors" >/dev/null
  accuracy=$("$work/prefix/bin/lockstep" eval "${own[@]}" --init "$work/own.safetensors" --json |
    python3 -c 'import json, sys; print("%.2f" % (100 * json.load(sys.stdin)["test_accuracy"]))')
  prints "$accuracy %" ranks 2 "$examples/evaluate_export" "$work/own.safetensors" "$few"
fi
code=0
ranks 2 "$examples/evaluate_export" /nowhere 2>"$work/refused" || code=$?
[ $code -eq 74 ] && [ "$(grep -c "^lockstep: /nowhere" "$work/refused")" -eq 1 ]
