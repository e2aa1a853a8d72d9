package volplane_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// document is one file for people, split into what is read and what is typed.
type document struct {
	path string
	// text is everything outside of code; code is the rest, one block or span
	// each.
	text string
	code []string
}

func documents(t *testing.T) []document {
	t.Helper()
	var out []document
	for _, path := range treeFiles(t, ".md") {
		out = append(out, parseDocument(path, readText(t, path)))
	}
	return out
}

func parseDocument(path, content string) document {
	d := document{path: path}
	var text, block strings.Builder
	inside := false
	for line := range strings.Lines(content) {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			if inside {
				d.code = append(d.code, block.String())
				block.Reset()
			}
			inside = !inside
		case inside:
			block.WriteString(line)
		default:
			text.WriteString(line)
		}
	}
	span := regexp.MustCompile("`[^`\n]+`")
	d.text = span.ReplaceAllStringFunc(text.String(), func(s string) string {
		d.code = append(d.code, strings.Trim(s, "`"))
		return "code"
	})
	return d
}

// TestLinks wants every link within the repository to lead somewhere.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, d := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(d.text, -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			file := d.path
			if path != "" {
				file = filepath.Join(filepath.Dir(d.path), path)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", d.path, target)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(readText(t, file)), anchor) {
				t.Errorf("%s: %s has no heading #%s", d.path, file, anchor)
			}
		}
	}
}

// anchors returns the names under which a document's headings are reached.
func anchors(content string) []string {
	var out []string
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.+)$`).FindAllStringSubmatch(content, -1) {
		name := drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), "")
		out = append(out, strings.ReplaceAll(name, " ", "-"))
	}
	return out
}

// TestPathsExist wants every path of this repository that a document names to
// be there; words in capitals stand for any name.
func TestPathsExist(t *testing.T) {
	path := regexp.MustCompile(`^(cmd|internal|standalone|test|release|docs|examples|deploy)/[a-z0-9/._-]*$`)
	for _, d := range documents(t) {
		for _, code := range d.code {
			if !path.MatchString(code) {
				continue
			}
			if _, err := os.Stat(filepath.FromSlash(code)); err != nil {
				t.Errorf("%s: there is no %s", d.path, code)
			}
		}
	}
}

// TestCommandsExist wants every target and verb that a document names.
func TestCommandsExist(t *testing.T) {
	makefile := readText(t, "Makefile")
	known := map[string][]string{
		"make":      submatches(makefile, `(?m)^([a-z][a-z-]*):`),
		"volplane":  append(verbs(t, "internal/cli"), "completion", "help"),
		"volplaned": append(verbs(t, "standalone/cmd/volplaned"), "completion", "help"),
	}
	// A command stands at the start of a line or after what may precede one.
	command := regexp.MustCompile(`(?m)(?:^|[$|;(] ?|&& |sudo |bin/)(make|volplaned?) +([a-z][a-z-]*)`)
	for _, d := range documents(t) {
		for _, code := range d.code {
			for _, m := range command.FindAllStringSubmatch(code, -1) {
				if !slices.Contains(known[m[1]], m[2]) {
					t.Errorf("%s: there is no %q", d.path, m[1]+" "+m[2])
				}
			}
		}
	}
}

// verbs returns the first words of the commands that a package and those below it define.
func verbs(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	for _, path := range treeFiles(t, ".go") {
		if strings.HasPrefix(filepath.ToSlash(path), dir+"/") {
			out = append(out, submatches(readText(t, path), `(?:Use: +|passCommand\((?:\w+, )?)"([a-z][a-z-]*)`)...)
		}
	}
	return out
}

func submatches(text, pattern string) []string {
	var out []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// TestFirstSteps wants the README's first transcript to be what has to be typed on
// a fresh machine: targets of the Makefile, and then the control plane.
func TestFirstSteps(t *testing.T) {
	code := parseDocument("README.md", readText(t, "README.md")).code
	i := slices.IndexFunc(code, func(c string) bool { return strings.HasPrefix(c, "$ ") && strings.Contains(c, "\n") })
	if i < 0 {
		t.Fatal("README.md has no transcript")
	}
	var typed []string
	for line := range strings.Lines(code[i]) {
		if c, ok := strings.CutPrefix(line, "$ "); ok {
			typed = append(typed, strings.TrimSpace(c))
		}
	}
	if len(typed) != 2 || typed[0] != "make demo" || !strings.HasSuffix(typed[1], "bin/volplane up") {
		t.Errorf("the first transcript of README.md has the commands %q, want `make demo` and `bin/volplane up`", typed)
	}
}

// TestNoMarks refuses what must not be in any file: notes of unfinished work,
// and the paths of a developer's machine.
func TestNoMarks(t *testing.T) {
	// Put together here, so that this file passes.
	marks := map[string]*regexp.Regexp{
		"unfinished work":       regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
		"a path of a workplace": regexp.MustCompile(`(^|[\s"'(=:` + "`" + `])(/wo` + `rk|/ho` + `me/\w|\.\./sha` + `red)\b`),
	}
	for _, path := range treeFiles(t, "") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// The definitions of snapshots are upstream's, unchanged.
		theirs := strings.HasSuffix(path, ".sum") ||
			strings.HasPrefix(path, filepath.Join("standalone", "apiserver", "crds")) && strings.HasSuffix(path, ".yaml") ||
			strings.HasPrefix(path, filepath.Join("charts", "volplane", "crd"))
		if theirs || bytes.IndexByte(data, 0) >= 0 || bytes.Contains(data[:min(len(data), 400)], []byte("DO NOT EDIT")) {
			continue
		}
		number := 0
		for line := range strings.Lines(string(data)) {
			number++
			for what, mark := range marks {
				if found := mark.FindString(line); found != "" {
					t.Errorf("%s:%d: %q: %s", path, number, strings.TrimSpace(found), what)
				}
			}
		}
	}
}

// TestExamples wants every example to hold only fields that exist.
func TestExamples(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	all := treeFiles(t, ".yaml")
	found := 0
	for _, path := range all {
		if !strings.HasPrefix(path, "examples"+string(filepath.Separator)) {
			continue
		}
		for i, object := range strings.Split(readText(t, path), "\n---\n") {
			found++
			if _, _, err := decoder.Decode([]byte(object), nil, nil); err != nil {
				t.Errorf("%s, object %d: %v", path, i+1, err)
			}
		}
	}
	if found == 0 {
		t.Error("there are no examples")
	}
}

// TestTranscriptOfUp wants README.md to show the summary that 'volplane up' prints.
func TestTranscriptOfUp(t *testing.T) {
	_, text, _ := strings.Cut(readText(t, "standalone/up/screen.go"), "`volplane %s is up")
	text, _, found := strings.Cut(text, "\n%s\n")
	line := strings.NewReplacer("snapshots   %s", `snapshots   [^\n]+`, "%s", `\S+`, `%\.1f`, `[0-9.]+`).Replace(regexp.QuoteMeta(text))
	if !found || !regexp.MustCompile(`volplane \S+ is up`+line+"\n```").MatchString(readText(t, "README.md")) {
		t.Errorf("README.md does not show what 'volplane up' prints: %s", text)
	}
}

// TestReasonsInDocuments wants the first word of each row of the table in
// docs/why.md to be reasons.
func TestReasonsInDocuments(t *testing.T) {
	words := slices.Sorted(maps.Values(reasons(t)))
	rows, inTable := 0, false
	for line := range strings.Lines(readText(t, "docs/why.md")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			inTable = false
			continue
		}
		if strings.TrimSpace(cells[1]) == "Reason" {
			inTable = true
			continue
		}
		if !inTable || strings.HasPrefix(cells[1], "---") {
			continue
		}
		rows++
		for word := range strings.SplitSeq(cells[1], ",") {
			if word = strings.TrimSpace(word); !slices.Contains(words, word) {
				t.Errorf("docs/why.md: %s is no reason of internal/volume", word)
			}
		}
	}
	if rows < 10 {
		t.Errorf("docs/why.md: found %d rows; has the form of the table changed?", rows)
	}
}

// TestNobodyEditsFinalizers: where a finalizer holds something, a command knows when it may be removed. A document or a
// message that asks a person to remove one shows that a command is missing.
func TestNobodyEditsFinalizers(t *testing.T) {
	t.Parallel()
	told := regexp.MustCompile(`(?i)\bremove\s+(the|their|its)\s+finalizer|\bedit\s[^.]{0,40}\bfinalizer`)
	for _, d := range documents(t) {
		if !strings.HasPrefix(d.path, "CHANGELOG") && told.MatchString(d.text) {
			t.Errorf("%s tells a person to edit a finalizer: %q", d.path, told.FindString(d.text))
		}
	}
	for _, path := range treeFiles(t, ".go") {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(filepath.Base(path), "zz_") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if text, is := n.(*ast.BasicLit); is && text.Kind == token.STRING && told.MatchString(text.Value) {
				t.Errorf("%s has a message that tells a person to edit a finalizer: %s", path, text.Value)
			}
			return true
		})
	}
}

// TestFirstTest wants the script in CONTRIBUTING.md to be one that is played.
func TestFirstTest(t *testing.T) {
	_, rest, _ := strings.Cut(readText(t, "CONTRIBUTING.md"), "## Your first test\n")
	_, rest, found := strings.Cut(rest, "\n```\n")
	script, _, _ := strings.Cut(rest, "\n```\n")
	if !found || !strings.Contains(readText(t, "internal/controller/protection/testdata/claim.txt"), script+"\n") {
		t.Errorf("CONTRIBUTING.md shows a test that is not played:\n%s", script)
	}
}
