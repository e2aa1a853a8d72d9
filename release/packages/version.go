package packages

import (
	"regexp"
	"strings"
)

// Version returns a version of the source, as git describes it, as one of a package: a pre-release sorts before its
// release, and commits after a release sort after it. Both dpkg and rpm compare "~" and "+" so.
func Version(described string) string {
	v := strings.TrimPrefix(described, "v")
	if !regexp.MustCompile(`^\d+\.\d`).MatchString(v) {
		v = "0.0.0-git." + v // of a commit without any release before it
	}
	after := ""
	if m := regexp.MustCompile(`-(\d+)-(g[0-9a-f]+)(-dirty)?$`).FindStringSubmatch(v); m != nil {
		v, after = strings.TrimSuffix(v, m[0]), "+"+m[1]+"."+m[2]
		if m[3] != "" {
			after += ".dirty"
		}
	}
	base, pre, found := strings.Cut(v, "-")
	if found {
		base += "~" + pre
	}
	return regexp.MustCompile(`[^A-Za-z0-9.~+]`).ReplaceAllString(base+after, ".")
}
