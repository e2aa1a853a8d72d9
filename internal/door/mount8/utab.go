package mount8

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const (
	// utab is where libmount keeps what the kernel does not know of mounts.
	utab = "/run/mount/utab"
	// noteprefix is that of options which libmount keeps there for us.
	noteprefix = "x-volplane."
)

// note has umount(8) call umount.volplane for a path. mount(8) writes its own file: told to fake a mount, it does
// nothing else.
func note(ctx context.Context, path string, options []string) error {
	if noted(path) != nil {
		return nil
	}
	all := strings.Join(append([]string{"helper=volplane"}, options...), ",")
	cmd := exec.CommandContext(ctx, "/bin/mount", "-i", "-f", "--bind", "-o", all, "--", path, path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("umount does not call %s for %s: %w: %s", UmountProgram, path, err, bytes.TrimSpace(out))
	}
	return nil
}

// noted returns the options noted for a path, or nil if umount(8) does not call umount.volplane for it.
func noted(path string) map[string]string {
	text, err := os.ReadFile(utab)
	if err != nil {
		return nil
	}
	return notedIn(string(text), path)
}

// notedIn reads libmount's file; of several lines for a path, the last one is valid.
func notedIn(text, path string) map[string]string {
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")
	var found map[string]string
	for line := range strings.Lines(text) {
		fields := map[string]string{}
		for field := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = plain.Replace(value)
		}
		if fields["TARGET"] != path {
			continue
		}
		options := map[string]string{}
		for option := range strings.SplitSeq(fields["OPTS"], ",") {
			name, value, _ := strings.Cut(option, "=")
			options[strings.TrimPrefix(name, noteprefix)] = value
		}
		if options["helper"] == "volplane" {
			found = options
		}
	}
	return found
}
