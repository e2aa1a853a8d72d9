package mount8

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
)

const (
	// utab is where libmount keeps what the kernel does not know about mounts.
	utab = "/run/mount/utab"
	// noteprefix is that of options which libmount keeps there for us.
	noteprefix = "x-volplane."
	// callsUs is the option that has umount(8) call umount.volplane.
	callsUs = "helper=volplane"
)

// note has umount(8) call umount.volplane for a path. mount(8) writes its own file: with the option to fake a mount, it
// does nothing else. A line of an earlier mount that was unmounted without umount(8) may have other options; a further
// line takes precedence.
func note(ctx context.Context, path string, options []string) error {
	all := strings.Join(append([]string{callsUs}, options...), ",")
	if text, err := os.ReadFile(utab); err == nil && isNoted(string(text), path, all) {
		return nil
	}
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
	var found map[string]string
	for line := range strings.Lines(text) {
		fields := map[string]string{}
		for field := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = unescape(value)
		}
		if fields["TARGET"] != path {
			continue
		}
		if options := optionsIn(fields["OPTS"]); options["helper"] == "volplane" {
			found = options
		}
	}
	return found
}

// unescape returns a field of fstab or of libmount's file as it is meant.
func unescape(field string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(field)
}

// isNoted says whether the line that counts for a path has these options.
func isNoted(text, path, options string) bool {
	has := notedIn(text, path)
	return has != nil && maps.Equal(has, optionsIn(options))
}

// optionsIn returns the options of a text, ours by their names without the prefix.
func optionsIn(text string) map[string]string {
	options := map[string]string{}
	for option := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(option, "=")
		options[strings.TrimPrefix(name, noteprefix)] = value
	}
	return options
}
