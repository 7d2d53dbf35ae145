#!/usr/bin/env bash
# Sets up what the tests need and runs them: two software Vulkan drivers (Mesa's lavapipe, and
# SwiftShader out of Chromium's package), installed with apt where they are missing. Arguments go to
# `cargo test`. Without apt the tests run on whatever devices there are.
set -euo pipefail
cd "$(dirname "$0")/.."

lavapipe=/usr/share/vulkan/icd.d/lvp_icd.x86_64.json
drivers=target/drivers
swiftshader=$drivers/vk_swiftshader_icd.json

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

if command -v apt-get >/dev/null; then
    need=()
    [ -e "$lavapipe" ] || need+=(mesa-vulkan-drivers)
    ldconfig -p | grep -q 'libvulkan\.so\.1' || need+=(libvulkan1)
    if [ ${#need[@]} -gt 0 ] || [ ! -e "$swiftshader" ]; then
        as_root apt-get update -qq
    fi
    if [ ${#need[@]} -gt 0 ]; then
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}"
    fi
    if [ ! -e "$swiftshader" ]; then
        # Only the driver is wanted of the browser's package, so it is unpacked, not installed.
        mkdir -p "$drivers/package"
        if (cd "$drivers/package" && apt-get download -qq chromium-common && dpkg-deb -x chromium-common_*.deb .); then
            cp "$drivers"/package/usr/lib/chromium/{libvk_swiftshader.so,vk_swiftshader_icd.json} "$drivers/"
        else
            echo "SwiftShader could not be fetched; going on without it" >&2
        fi
        rm -rf "$drivers/package"
    fi
fi

# Beside the drivers that the loader finds by itself, lavapipe and a GPU's among them.
[ ! -e "$swiftshader" ] || export VK_ADD_DRIVER_FILES=$PWD/$swiftshader
exec cargo test --workspace "$@"
