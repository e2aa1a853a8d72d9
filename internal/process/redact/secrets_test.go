package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// spellings are the ways in which programs show what they were given.
func spellings() map[string]func(string) string {
	unhtml := func(s string) string {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(s)
		return b.String()
	}
	all := map[string]func(string) string{
		"plain":              func(s string) string { return s },
		"JSON":               func(s string) string { b, _ := json.Marshal(s); return string(b) },
		"JSON without HTML":  unhtml,
		"Go":                 strconv.Quote,
		"Go in ASCII":        strconv.QuoteToASCII,
		"bytes in Go":        func(s string) string { return fmt.Sprintf("%v", []byte(s)) },
		"bytes in Go source": func(s string) string { return fmt.Sprintf("%#v", []byte(s)) },
		"JSON of bytes":      func(s string) string { b, _ := json.Marshal([]byte(s)); return string(b) },
		"query":              url.QueryEscape,
		"path":               url.PathEscape,
		"lower percent": func(s string) string {
			return regexp.MustCompile(`%..`).ReplaceAllStringFunc(url.QueryEscape(s), strings.ToLower)
		},
		"every byte percent": func(s string) string { return "%" + strings.ReplaceAll(fmt.Sprintf("% x", s), " ", "%") },
		"HTML":               html.EscapeString,
		"hex":                func(s string) string { return hex.EncodeToString([]byte(s)) },
		"upper hex":          func(s string) string { return fmt.Sprintf("%X", s) },
		"hex with blanks":    func(s string) string { return fmt.Sprintf("% x", s) },
		"hex with 0x":        func(s string) string { return fmt.Sprintf("%# x", s) },
		"hex with colons":    func(s string) string { return strings.ReplaceAll(fmt.Sprintf("% x", s), " ", ":") },
		"C":                  func(s string) string { return `\x` + strings.ReplaceAll(fmt.Sprintf("% x", s), " ", `\x`) },
		"octal": func(s string) string {
			var b strings.Builder
			for i := range len(s) {
				fmt.Fprintf(&b, `\%03o`, s[i])
			}
			return b.String()
		},
		"JSON in ASCII": func(s string) string {
			return strings.ReplaceAll(strconv.QuoteToASCII(s), `\U0001f511`, `\ud83d\udd11`)
		},
		"shell's trace":    func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" },
		"other trace":      func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" },
		"base64":           func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"base64 for URLs":  func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) },
		"base64 of a pair": func(s string) string { return base64.StdEncoding.EncodeToString([]byte("admin:" + s)) },
		"base64 in lines": func(s string) string {
			var b strings.Builder
			for i, c := range base64.StdEncoding.EncodeToString([]byte(strings.Repeat(s, 8))) {
				if i > 0 && i%76 == 0 {
					b.WriteByte('\n')
				}
				b.WriteRune(c)
			}
			return b.String()
		},
	}
	for _, name := range []string{"JSON", "query", "base64", "hex", "base64 in lines"} {
		inner := all[name]
		all[name+" in JSON"] = func(s string) string {
			b, _ := json.Marshal(map[string]string{"k": inner(s)})
			return string(b)
		}
		all[name+" in a query"] = func(s string) string { return "https://host/?k=" + url.QueryEscape(inner(s)) + "&x=y" }
		all[name+" in JSON in JSON"] = func(s string) string {
			b, _ := json.Marshal(map[string]string{"k": inner(s)})
			b, _ = json.Marshal(string(b))
			return string(b)
		}
	}
	return all
}

// hiding returns Secrets that hide the values of a Secret.
func hiding(data map[string]string) *Secrets {
	s := &Secrets{}
	s.AddData(data)
	return s
}

// shows says whether a text contains a part of a secret, as it was written, that is
// longer than partSize.
func shows(got, written string) bool {
	const longest = partSize
	for i := 0; i+longest < len(written); i++ {
		if strings.Contains(got, written[i:i+longest+1]) {
			return true
		}
	}
	return false
}

// TestSpellings: a secret is found in every spelling, whole, and when the text
// was cut after three quarters of it.
func TestSpellings(t *testing.T) {
	secrets := map[string]string{
		"word":     "correct-horse-battery",
		"signs":    `it's "50%" of <s&cret> + \/ and $(x)`,
		"unicode":  "schlüssel 🔑 ключ und noch mehr",
		"lines":    "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7\nq83vEjRWeJCrze8=\n-----END KEY-----\n",
		"password": "hunter2!",
	}
	for kind, secret := range secrets {
		s := hiding(map[string]string{"k": secret})
		for name, spell := range spellings() {
			written := spell(secret)
			got := s.Hide("login failed: " + written + " (try again)")
			core := strings.Trim(written, `"'{}:k[]`)
			if name == "base64 of a pair" {
				core = core[len("YWRtaW46"):]
			}
			for _, frame := range []string{"https://host/?k=", "&x=y", `\"k\":\"`, "k\":\"", "k\\\":\\\""} {
				core = strings.TrimSuffix(strings.TrimPrefix(core, frame), frame)
			}
			if !strings.Contains(got, Hidden) || shows(got, core) || !strings.HasPrefix(got, "login failed: ") ||
				!strings.HasSuffix(got, "(try again)") {
				t.Errorf("%s as %s\n%s\nis shown as\n%s", kind, name, written, got)
			}
			cut := written[:len(written)*3/4]
			if got := s.Hide("login failed: " + cut); len(secret) > 2*partSize &&
				shows(got, strings.Trim(core, `"`)[:min(len(core), len(cut))*2/3]) {
				t.Errorf("%s as %s, cut,\n%s\nis shown as\n%s", kind, name, cut, got)
			}
		}
	}
}

// TestTwoSpellings: a secret that a text has in two spellings is hidden in both.
func TestTwoSpellings(t *testing.T) {
	const secret = "correct-horse-battery"
	s, spell := hiding(map[string]string{"k": secret}), spellings()
	names := []string{"plain", "hex", "base64", "bytes in Go", "every byte percent", "C"}
	for _, first := range names {
		for _, second := range names {
			got := s.Hide(spell[first](secret) + "; " + spell[second](secret))
			for _, name := range []string{first, second} {
				if core := strings.Trim(spell[name](secret), "=[]"); shows(got, core) {
					t.Errorf("%s and %s are shown as %s", first, second, got)
				}
			}
		}
	}
}

// TestHide: what is hidden, and what is left so that a message can be understood.
func TestHide(t *testing.T) {
	s := hiding(map[string]string{
		"user": "adm", "pin": "4711", "key": "a-longer-secret", "file": "{\n  \"id\": \"storage-key-1\",\n}\n", "empty": "",
	})
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"
	for text, want := range map[string]string{
		"nothing secret {}":            "nothing secret {}",
		"user adm, pin 4711":           "user ***, pin ***",
		"a-longer-secret":              "***",
		"a-longer":                     "***",
		"a-longe":                      "a-longe",
		"x-a-longer-secret-x":          "x-***-x",
		"key storage-key-1 is unknown": "key *** is unknown",
		"token " + token + " expired":  "token *** expired",
		"Zm9v YWRt NDcxMQ==":           "Zm9v YWRt ***",
		"a\xffb":                       "a?b",
		"":                             "",
	} {
		if got := s.Hide(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
	var none Secrets
	if got := none.Hide("token " + token); got != "token ***" {
		t.Errorf("without secrets a token is shown: %s", got)
	}
}

// TestBounds: neither many secrets nor a long text nor one that was made to be
// slow take long, and what is forgotten is what was given long ago.
func TestBounds(t *testing.T) {
	var s Secrets
	for i := range 40_000 {
		s.Add(fmt.Sprintf("secret number %07d", i))
	}
	if n := len(s.current.parts) + len(s.previous.parts); n > 3*maxParts {
		t.Errorf("%d hashes are kept", n)
	}
	if got := s.Hide("secret number 0039999, secret number 0039000"); got != "***, ***" {
		t.Errorf("the newest are shown: %s", got)
	}
	for _, text := range []string{
		strings.Repeat("%255cu0041", 2000), strings.Repeat("a", 1<<20), strings.Repeat("&amp;#x5c;", 2000),
		strings.Repeat("41424344", 1000),
	} {
		start := time.Now()
		got := s.Hide(text)
		if took := time.Since(start); took > 5*time.Second || len(got) > MaxText+10 {
			t.Errorf("%.20q...: %v, %d bytes", text, took, len(got))
		}
	}
}

// TestAnyTextAnySecret: a secret of any bytes, in any text, in a chain of any
// two spellings.
func TestAnyTextAnySecret(t *testing.T) {
	spell := spellings()
	names := []string{"plain", "JSON", "Go", "query", "hex", "base64", "bytes in Go", "HTML"}
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[a-zA-Z0-9 !-~]{12,40}`).Draw(t, "secret")
		written := secret
		for range 2 {
			written = spell[rapid.SampledFrom(names).Draw(t, "spelling")](written)
		}
		s := hiding(map[string]string{"k": secret})
		got := s.Hide(rapid.StringMatching(`[a-z=: ]{0,20}`).Draw(t, "before") + " " + written)
		if !utf8.ValidString(got) || !strings.Contains(got, Hidden) || strings.Contains(got, written) ||
			strings.Contains(got, secret) {
			t.Fatalf("%q as %q is shown as %q", secret, written, got)
		}
	})
}

func FuzzHide(f *testing.F) {
	f.Add(`\ud83d\u`, "secret")
	f.Add("%4", "12345678")
	f.Add("0x41 0x42 0x43 0x44 0x", "ABCD")
	f.Fuzz(func(t *testing.T, text, secret string) {
		s := hiding(map[string]string{"k": secret})
		got := s.Hide(text)
		if !utf8.ValidString(got) || len(got) > 3*MaxText+10 {
			t.Fatalf("%q", got)
		}
		if len(secret) > 3 && utf8.ValidString(secret) && !strings.Contains(Hidden, secret) && len(text) < MaxText &&
			strings.Contains(got, secret) {
			t.Fatalf("%q shows %q", got, secret)
		}
	})
}
