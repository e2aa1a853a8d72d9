package flex

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

// TestNames shows each form of the names that there are (F-056) and refuses the
// others.
func TestNames(t *testing.T) {
	for _, c := range []struct{ name, dir, csi string }{
		{"lofs", "lofs", "lofs"},
		{"example.com/lofs", "example.com~lofs", "lofs.example.com"},
		{"k8s/nfs-client", "k8s~nfs-client", "nfs-client.k8s"},
		{"example.com/a.b", "example.com~a.b", "a--db.example.com"},
		{"b.example.com/a", "b.example.com~a", "a.b.example.com"},
		{"example.com/a_b", "example.com~a_b", "a--ub.example.com"},
		{"example.com/a--b", "example.com~a--b", "a--m--mb.example.com"},
		{"example.com/a-_b", "example.com~a-_b", "a--m--ub.example.com"},
		{"example.com/LoFS", "example.com~LoFS", "x--x--clo--cf--cs.example.com"},
		{"lo.fs", "lo.fs", "lo--dfs"},
		{"x/x--x", "x~x--x", "x--m--mx.x"},
	} {
		n, err := ParseName(c.name)
		if err != nil || n.String() != c.name || n.Dir() != c.dir {
			t.Errorf("ParseName(%q) = %+v, %v", c.name, n, err)
		}
		if again, err := ParseDir(c.dir); err != nil || again != n {
			t.Errorf("ParseDir(%q) = %+v, %v", c.dir, again, err)
		}
		csi, err := n.CSI()
		if err != nil || csi != c.csi {
			t.Errorf("%v.CSI() = %q, %v, want %q", n, csi, err, c.csi)
		}
		if again, err := ParseCSI(csi); err != nil || again != n {
			t.Errorf("ParseCSI(%q) = %+v, %v", csi, again, err)
		}
	}
}

func TestNamesRefused(t *testing.T) {
	for _, s := range []string{
		"", "/", "a/", "/a", "a/b/c", "..", "a/..", "../a", "a b", "a\nb", "Example.com/a", "a_b/c", "-a", "a-", "a/.b", "ä",
		"a\x00", strings.Repeat("a", 64), strings.Repeat("a", 254) + "/a", "a~b", "a/b~c",
	} {
		if n, err := ParseName(s); !errors.Is(err, ErrName) {
			t.Errorf("ParseName(%q) = %+v, %v", s, n, err)
		}
	}
	for _, s := range []string{"", "a~b~c", "~a", "a~", "a/b", ".a", "a~.b", "a\n", "A~b", strings.Repeat("~", 3)} {
		if n, err := ParseDir(s); !errors.Is(err, ErrName) {
			t.Errorf("ParseDir(%q) = %+v, %v", s, n, err)
		}
	}
	for _, s := range []string{
		"", "A", "a.B", "x--xa", "a--", "a--x", "a--c", "a--c.b", "a--cA", "a_b", "a--mb", "a.", ".a", "-a",
		strings.Repeat("a", 64),
	} {
		if n, err := ParseCSI(s); !errors.Is(err, ErrName) {
			t.Errorf("ParseCSI(%q) = %+v, %v", s, n, err)
		}
	}
	for _, n := range []Name{
		{},
		{Vendor: "a/b", Driver: "c"},
		{Driver: "a/b"},
		{Vendor: "a"},
		{Vendor: strings.Repeat("a", 62), Driver: "b"},
		{Driver: strings.Repeat("A", 40)},
	} {
		if s, err := n.CSI(); !errors.Is(err, ErrName) {
			t.Errorf("%+v.CSI() = %q, %v", n, s, err)
		}
	}
}

// TestCSINamesAreReversible wants a different, valid name for each driver, and the
// driver back from it without a table.
func TestCSINamesAreReversible(t *testing.T) {
	component := rapid.StringMatching(`([A-Za-z0-9][-A-Za-z0-9_.]{0,12})?[A-Za-z0-9]`)
	vendor := rapid.OneOf(rapid.Just(""),
		rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?){0,2}`))
	rapid.Check(t, func(t *rapid.T) {
		n := Name{Vendor: vendor.Draw(t, "vendor"), Driver: component.Draw(t, "driver")}
		s, err := n.CSI()
		if err != nil {
			// Nothing but its length can be wrong.
			if long := escape(n.Driver) + "." + n.Vendor; len(long) <= maxCSIName {
				t.Fatalf("%+v: %v", n, err)
			}
			return
		}
		checkCSI(t, s)
		if again, err := ParseCSI(s); err != nil || again != n {
			t.Fatalf("%+v became %q became %+v, %v", n, s, again, err)
		}
	})
}

// checkCSI wants a name that CSI, CSIDriver objects and directories can have.
func checkCSI(t interface{ Fatalf(string, ...any) }, s string) {
	problems := validation.IsDNS1123Subdomain(s)
	if len(problems) > 0 || len(s) > maxCSIName || !regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`).MatchString(s) {
		t.Fatalf("%q is not a name of a CSI driver: %v", s, problems)
	}
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{
		"lofs", "example.com/lofs", "example.com~lofs", "lofs.example.com", "x--x--clofs", "a~b~c", "../x", "a--d.b",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, parse := range []func(string) (Name, error){ParseName, ParseDir, ParseCSI} {
			n, err := parse(s)
			if err != nil {
				if !errors.Is(err, ErrName) || len(err.Error()) > 2000 {
					t.Fatalf("%q: %v", s, err)
				}
				continue
			}
			checkForms(t, n)
		}
	})
}

// checkForms wants a name back from each of its forms.
func checkForms(t *testing.T, n Name) {
	t.Helper()
	if again, err := ParseName(n.String()); err != nil || again != n {
		t.Fatalf("%+v is %+v by its name, %v", n, again, err)
	}
	if again, err := ParseDir(n.Dir()); err != nil || again != n {
		t.Fatalf("%+v is %+v by its directory, %v", n, again, err)
	}
	if err := CheckComponent(n.Dir()); err != nil {
		t.Fatal(err)
	}
	csi, err := n.CSI()
	if err != nil {
		return
	}
	checkCSI(t, csi)
	if again, err := ParseCSI(csi); err != nil || again != n {
		t.Fatalf("%+v became %q became %+v, %v", n, csi, again, err)
	}
}
