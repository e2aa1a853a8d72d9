package volplane_test

import (
	"bufio"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// needs returns the table of what the tests of each package need.
func needs(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for line := range strings.Lines(readText(t, filepath.Join(".ci", "needs.txt"))) {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			all[words[0]] = words[1:]
		}
	}
	return all
}

// TestNeeds: the table of what tests need is about packages that there are, in
// words that .ci/needs knows, and has those that mount or run a built program.
func TestNeeds(t *testing.T) {
	signs := map[string]string{
		"unix.Mount(": "root", "plane.Start(": "bin/volplane", `plane.Bin("volplane")`: "bin/volplane",
	}
	table, tested := needs(t), map[string]bool{}
	for _, f := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(f.path))
		if !strings.HasSuffix(f.path, "_test.go") || dir == "." {
			continue
		}
		tested[dir] = true
		text := readText(t, f.path)
		for sign, need := range signs {
			if strings.Contains(text, sign) && !slices.Contains(table[dir], need) {
				t.Errorf("%s has %s: give %s the word %s in .ci/needs.txt", f.path, sign, dir, need)
			}
		}
	}
	for dir, words := range table {
		if !tested[dir] {
			t.Errorf(".ci/needs.txt: %s has no tests", dir)
		}
		for _, word := range words {
			if !provided(t, word) {
				t.Errorf(".ci/needs.txt: %s needs %s, which nobody provides", dir, word)
			}
		}
	}
}

// provided says that .ci/needs knows a word, and make the program that it names.
func provided(t *testing.T, word string) bool {
	t.Helper()
	if slices.Contains([]string{"root", "tools", "bin/volplane"}, word) {
		return true
	}
	target := regexp.MustCompile(`(?m)^[^\t:]*` + regexp.QuoteMeta(word) + `\b.*:`)
	return strings.HasPrefix(word, "bin/") && target.MatchString(readText(t, "Makefile"))
}

// TestModulesAgree: what two of the modules require has one version, or it, and all
// that imports it, is compiled twice.
func TestModulesAgree(t *testing.T) {
	versions, of := map[string]string{}, map[string]string{}
	for _, file := range []string{"go.mod", "standalone/go.mod", "test/go.mod", "release/go.mod"} {
		for s := bufio.NewScanner(strings.NewReader(readText(t, file))); s.Scan(); {
			words := strings.Fields(strings.TrimPrefix(s.Text(), "require "))
			if len(words) < 2 || !regexp.MustCompile(`^v\d`).MatchString(words[1]) || words[1] == "v0.0.0" {
				continue
			}
			module, version := words[0], words[1]
			if other := versions[module]; other != "" && other != version {
				t.Errorf("%s requires %s %s, %s requires %s: take the newer one in both", of[module], module, other, file, version)
			}
			versions[module], of[module] = version, file
		}
	}
}
