package flex

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/testkit/golden"
)

func fullVolume() Volume {
	return Volume{
		Name: "pv-1", FSType: "ext4", ReadOnly: true,
		Options: map[string]string{
			"server": "192.168.0.1:1234", "path": "/a b", "quote": `<"&">`, "kubernetes.example.com/x": "y",
		},
		Secrets: map[string]string{"user": "me", "password": "$(rm -rf /); `id` \"'"},
		Pod:     PodInfo{Name: "web-0", Namespace: "shop", UID: "b2f", ServiceAccount: "default"},
		FSGroup: ptr.To(int64(2000)),
	}
}

// TestArguments: which keys each operation gets, and in which spelling (F-004 to
// F-008, H10). Secrets and the Pod go to mount only.
func TestArguments(t *testing.T) {
	var b strings.Builder
	for _, op := range Operations() {
		for _, c := range []struct {
			name string
			v    Volume
		}{{"all", fullVolume()}, {"least", Volume{Name: "pv-1"}}} {
			got, err := Argument(op, c.v)
			if err != nil {
				got = "error: " + err.Error()
			}
			fmt.Fprintf(&b, "%s, %s:\n\t%s\n", op, c.name, got)
		}
	}
	golden.Equal(t, "testdata/arguments.txt", b.String())
}

func TestArgumentRefuses(t *testing.T) {
	secret := strings.Repeat("s", 98_000)
	if _, err := Argument(OpMount, Volume{Secrets: map[string]string{"k": secret[:97_000]}}); err != nil {
		t.Errorf("a secret of 97000 bytes: %v", err)
	}
	for _, c := range []struct {
		name string
		v    Volume
		want error
	}{
		{"secret too long", Volume{Secrets: map[string]string{"k": secret + secret[:2000]}}, ErrTooLong},
		{"option too long", Volume{Options: map[string]string{"k": secret + secret}}, ErrTooLong},
		{"fsType", Volume{Options: map[string]string{"kubernetes.io/fsType": "x"}}, ErrOptionKey},
		{"secret", Volume{Options: map[string]string{"kubernetes.io/secret/a": "x"}}, ErrOptionKey},
		{"capitals", Volume{Options: map[string]string{"Kubernetes.IO/fsType": "x"}}, ErrOptionKey},
		{"subdomain", Volume{Options: map[string]string{"a.k8s.io/b": "x"}}, ErrOptionKey},
		{"domain alone", Volume{Options: map[string]string{"k8s.io": "x"}}, ErrOptionKey},
		{"zero in a key", Volume{Options: map[string]string{"a\x00": "x"}}, ErrNUL},
		{"zero in a value", Volume{Options: map[string]string{"a": "x\x00"}}, ErrNUL},
		{"zero in the name", Volume{Name: "a\x00"}, ErrNUL},
	} {
		got, err := Argument(OpMount, c.v)
		if !errors.Is(err, c.want) || got != "" {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "sss") {
			t.Errorf("%s: the error tells the value", c.name)
		}
	}
	if _, err := Argument(OpMount,
		Volume{Options: map[string]string{"k8s.iox/a": "", "mykubernetes.io/b": "", "": ""}}); err != nil {
		t.Errorf("keys of others: %v", err)
	}
}

func FuzzArgument(f *testing.F) {
	f.Add("pv", "ext4", "server", "a b", "key", "value\n")
	f.Add("", "", "kubernetes.io/x", "", "", "")
	f.Add("\xff", "\x00", "", "<>&\u2028", "k/../", "$(x)")
	f.Fuzz(func(t *testing.T, name, fsType, key, value, secretKey, secret string) {
		v := Volume{
			Name: name, FSType: fsType, Options: map[string]string{key: value}, Secrets: map[string]string{secretKey: secret},
		}
		for _, op := range Operations() {
			s, err := Argument(op, v)
			if err != nil {
				continue
			}
			var got map[string]string
			if err := json.Unmarshal([]byte(s), &got); err != nil {
				t.Fatalf("%q: %v", s, err)
			}
			if len(s) > MaxArgument || strings.ContainsAny(s, "\x00\n") {
				t.Fatalf("%q is no argument", s)
			}
			if utf8.ValidString(fsType) && got[KeyFSType] != fsType {
				t.Fatalf("an option replaced what the host says: %q", s)
			}
			if !utf8.ValidString(secretKey) {
				continue
			}
			sent, there := got[KeySecretPrefix+secretKey]
			if there != (op == OpMount) || there && sent != base64.StdEncoding.EncodeToString([]byte(secret)) {
				t.Fatalf("%s: secret sent: %v, %q", op, there, sent)
			}
		}
	})
}

// TestRedact: no form of a secret is left, whatever the driver made of it.
func TestRedact(t *testing.T) {
	secrets := map[string]string{
		"user": "admin", "password": "p\"ss;w$(x)\\rd", "key": "-----BEGIN\nabcdef\nghijkl\n", "part": "admin-2",
		"html": "a<b&\"c", "url": "???>>>", "empty": "",
	}
	var shown strings.Builder
	for _, s := range []string{
		"nothing secret",
		"login of admin-2 failed",
		"mount -o user=admin,password=p\"ss;w$(x)\\rd",
		`{"kubernetes.io/secret/password":"` + base64.StdEncoding.EncodeToString([]byte(secrets["password"])) + `"}`,
		`{"password":"p\"ss;w$(x)\\rd"}`,
		`{"html":"a\u003cb\u0026\"c" or "a<b&\"c"}`,
		base64.URLEncoding.EncodeToString([]byte(secrets["url"])),
		"line abcdef is wrong",
		"url " + base64.RawURLEncoding.EncodeToString([]byte(secrets["key"])),
		"two\nlines\twith\x00control\x1b[31m and \xff bytes",
		strings.Repeat("long ", 1000),
	} {
		fmt.Fprintf(&shown, "%s\n", Redact(s, hiding(secrets)))
	}
	golden.Equal(t, "testdata/redacted.txt", shown.String())
}

// hiding returns what hides the values of a Secret.
func hiding(data map[string]string) *redact.Secrets {
	s := &redact.Secrets{}
	s.AddData(data)
	return s
}

// TestRedactForms: as programs show a secret that they were given.
func TestRedactForms(t *testing.T) {
	const secret = "it's 50% of s&cret/+"
	long := strings.Repeat("a long key ", 20)
	wrapped := regexp.MustCompile(`.{76}`).ReplaceAllString(base64.StdEncoding.EncodeToString([]byte(long)), "$0\n")
	for _, text := range []string{
		`+ mount -o password='it'\''s 50% of s&cret/+'`, `+ mount -o 'password=it'"'"'s 50% of s&cret/+'`,
		"http://user:it%27s+50%25+of+s%26cret%2F%2B@host", "http://user:it%27s%2050%25%20of%20s&cret%2F+@host", wrapped,
		strings.ReplaceAll(wrapped, "\n", " "),
	} {
		got := Redact(text, hiding(map[string]string{"password": secret, "key": long}))
		if !strings.Contains(got, redact.Hidden) || strings.Contains(got, "cret") || strings.Contains(got, wrapped[:20]) ||
			strings.Contains(got, wrapped[80:100]) {
			t.Errorf("%s", got)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("a secret b", "secret")
	f.Add("c2VjcmV0", "secret")
	f.Fuzz(func(t *testing.T, text, secret string) {
		got := Redact(text+" "+secret+" "+base64.StdEncoding.EncodeToString([]byte(secret)),
			hiding(map[string]string{"k": secret}))
		if len(got) > MaxMessage+len("...") || strings.ContainsAny(got, "\n\x00") {
			t.Fatalf("%q is no message", got)
		}
		// Other secrets may appear anew where blanks are joined.
		if regexp.MustCompile(`^[A-Za-z0-9]+$`).MatchString(secret) && strings.Contains(got, secret) {
			t.Fatalf("%q shows %q", got, secret)
		}
	})
}
