package flex

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// ErrName says that a text is not the name of a FlexVolume driver.
var ErrName = errors.New("not the name of a FlexVolume driver")

// maxCSIName is the length limit of the name of a CSI driver.
const maxCSIName = 63

// Name is the name of a driver: the parts before and after the slash in spec.flexVolume.driver.
// Vendor is a DNS subdomain and may be empty. Driver is also the name of the executable.
type Name struct{ Vendor, Driver string }

// ParseName parses "example.com/lofs" or "lofs" by the rules of Kubernetes' qualified names. The
// error wraps ErrName.
func ParseName(s string) (Name, error) {
	if problems := validation.IsQualifiedName(s); len(problems) > 0 {
		return Name{}, fmt.Errorf("%w: %q: %s", ErrName, bounded(s), strings.Join(problems, "; "))
	}
	vendor, driver, found := strings.Cut(s, "/")
	if !found {
		vendor, driver = "", s
	}
	return Name{Vendor: vendor, Driver: driver}, nil
}

// ParseDir parses the name of a driver's directory, "example.com~lofs" or "lofs". Each "~" stands
// for a slash, so there is at most one (F-056). The error wraps ErrName.
func ParseDir(dir string) (Name, error) {
	if strings.Contains(dir, "/") {
		return Name{}, fmt.Errorf("%w: %q: a directory's name cannot have a slash", ErrName, bounded(dir))
	}
	return ParseName(strings.ReplaceAll(dir, "~", "/"))
}

// ParseCSI returns the Name whose CSI is s, without a table. The error wraps ErrName.
func ParseCSI(s string) (Name, error) {
	label, vendor, _ := strings.Cut(s, ".")
	driver, ok := unescape(label)
	n := Name{Vendor: vendor, Driver: driver}
	if again, err := n.CSI(); !ok || err != nil || again != s {
		return Name{}, fmt.Errorf("%w: %q is not made from a driver's name", ErrName, bounded(s))
	}
	return n, nil
}

// String returns the name in the form of a spec: example.com/lofs.
func (n Name) String() string {
	if n.Vendor == "" {
		return n.Driver
	}
	return n.Vendor + "/" + n.Driver
}

// Dir returns the name in the form of a directory: example.com~lofs.
func (n Name) Dir() string { return strings.ReplaceAll(n.String(), "/", "~") }

// CSI returns the name of the CSI driver for this driver, which is also a valid name of a
// Kubernetes object: lofs.example.com. Other characters of Driver are escaped, so that two drivers
// never have the same one. The error wraps ErrName if the name is invalid or the result exceeds the
// 63 characters that CSI allows.
func (n Name) CSI() (string, error) {
	again, err := ParseName(n.String())
	if err != nil {
		return "", err
	}
	if again != n {
		return "", fmt.Errorf("%w: %q has a slash in one of its parts", ErrName, bounded(n.String()))
	}
	s := escape(n.Driver)
	if n.Vendor != "" {
		s += "." + n.Vendor
	}
	if len(s) > maxCSIName {
		return "", fmt.Errorf("%w that can be a CSI driver's: %s has %d characters, %d are allowed", ErrName, s,
			len(s), maxCSIName)
	}
	return s, nil
}

// An escape is two dashes and a letter: d for a dot, u for an underscore, m for a minus that is not
// between two letters or digits, c for a capital letter, which follows in lower case. A label must
// not begin with a dash: if it would, noEscape, which stands for nothing, precedes it.
const noEscape = "x--x"

func escape(driver string) string {
	var b strings.Builder
	for i := range len(driver) {
		switch c := driver[i]; {
		case c == '.':
			b.WriteString("--d")
		case c == '_':
			b.WriteString("--u")
		case c == '-' && !(isLowerAlnum(driver, i-1) && isLowerAlnum(driver, i+1)):
			b.WriteString("--m")
		case c >= 'A' && c <= 'Z':
			b.WriteString("--c")
			b.WriteByte(c - 'A' + 'a')
		default:
			b.WriteByte(c)
		}
	}
	if s := b.String(); !strings.HasPrefix(s, "-") {
		return s
	}
	return noEscape + b.String()
}

// isLowerAlnum says whether there is a lower-case letter or digit at i.
func isLowerAlnum(s string, i int) bool {
	return i >= 0 && i < len(s) && (s[i] >= 'a' && s[i] <= 'z' || s[i] >= '0' && s[i] <= '9')
}

// unescape undoes escape. For a text that escape cannot return, the result is not a driver's name,
// or has another escaped form.
func unescape(label string) (string, bool) {
	label = strings.TrimPrefix(label, noEscape)
	var b strings.Builder
	for label != "" {
		rest, found := strings.CutPrefix(label, "--")
		if !found {
			b.WriteByte(label[0])
			label = label[1:]
			continue
		}
		if rest == "" {
			return "", false
		}
		code := rest[0]
		label = rest[1:]
		switch {
		case code == 'd':
			b.WriteByte('.')
		case code == 'u':
			b.WriteByte('_')
		case code == 'm':
			b.WriteByte('-')
		case code == 'c' && label != "" && label[0] >= 'a' && label[0] <= 'z':
			b.WriteByte(label[0] - 'a' + 'A')
			label = label[1:]
		default:
			return "", false
		}
	}
	return b.String(), true
}
