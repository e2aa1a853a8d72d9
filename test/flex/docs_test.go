package flex

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"volplane.dev/volplane/test/internal/plane"
)

// typed is a command in a document with its documented output.
type typed struct{ command, prints string }

// transcript returns the commands of a section of a document.
func transcript(t *testing.T, path, section string) []typed {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var all []typed
	for i, block := range strings.Split(text, "```") {
		if i%2 == 0 {
			continue
		}
		for line := range strings.Lines(strings.TrimPrefix(block, "\n")) {
			if command, found := strings.CutPrefix(line, "$ "); found {
				all = append(all, typed{command: command})
			} else if len(all) > 0 {
				all[len(all)-1].prints += line
			}
		}
	}
	return all
}

// TestFlexInTenMinutes runs the commands of docs/flex.md on a machine without a host of drivers, and
// compares the output, except for times and versions.
func TestFlexInTenMinutes(t *testing.T) {
	all := transcript(t, filepath.Join("..", "..", "docs", "flex.md"), "A driver in ten minutes")
	if len(all) < 5 {
		t.Fatalf("found %d commands", len(all))
	}
	var script strings.Builder
	// The script gets an empty default directory in its own mount namespace.
	script.WriteString("set -e\n" + letGo +
		"\nmkdir -p /usr/libexec\nmount -t tmpfs tmpfs /usr/libexec\nmount -t tmpfs tmpfs /var/lib\n")
	for _, c := range all {
		fmt.Fprintf(&script, "%s echo ---\n", c.command)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c",
		script.String())
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(plane.Bin("volplane"))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := strings.Split(string(out), "---\n")
	for i, c := range all {
		if want := plain(c.prints); plain(got[i]) != want {
			t.Errorf("%s prints\n%s\ndocs/flex.md says\n%s", strings.TrimSpace(c.command), got[i], c.prints)
		}
	}
}

// plain replaces the parts of a text that differ between runs.
func plain(text string) string {
	for pattern, word := range map[string]string{
		`\b[0-9a-f]{16}\b`: "VERSION", `\b[0-9]+ ms\b`: "TIME", `\b[0-9]+s +`: "AGE ", `\b[0-9.]+ s\n`: "TIME\n",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, word)
	}
	return text
}
