package page

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/browser"
)

// heading is true on a page with this heading.
func heading(text string) string {
	return fmt.Sprintf("document.querySelector('h1') && document.querySelector('h1').textContent.startsWith(%q)", text)
}

const (
	isLive = "document.getElementById('live').textContent.startsWith('Live')"
	body   = "document.body.textContent"
)

// quiet fails the test if the browser has complained, or was led away.
func quiet(t *testing.T, tab *browser.Tab, link string) {
	t.Helper()
	if all := tab.Complaints(); len(all) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(all, "\n"))
	}
	for _, address := range tab.Asked() {
		if !strings.HasPrefix(address, rootOf(link)) && address != "data:," && address != "about:blank" {
			t.Errorf("the browser asks elsewhere: %s", address)
		}
	}
}

// TestLive: a change is shown without a reload; unchanged parts and the focus stay, and a screen reader is notified;
// the link does not work twice.
func TestLive(t *testing.T) {
	s, link := play(t, town()...)
	b := browser.Start(t)
	tab := b.Open(t)
	tab.Go(link, heading("Overview")+" && "+isLive)
	tab.Eval(`document.getElementById('nodes').kept = true;
		document.querySelector('#problems a[href*="/backups"]').focus()`, nil)
	s.change(t, func(ctx context.Context, c kubernetes.Interface) error {
		late := &corev1.PersistentVolumeClaim{}
		late.Namespace, late.Name, late.UID = "default", "mail", "uid-mail"
		late.Status.Phase = corev1.ClaimPending
		_, err := c.CoreV1().PersistentVolumeClaims("default").Create(ctx, late, metav1.CreateOptions{})
		return err
	})
	tab.Wait(`document.querySelector('#problems a[href*="/mail"]') && ` + isLive)
	var told struct {
		Status, Focus string
		Kept          bool
	}
	tab.Eval(`({Status: document.getElementById('live').textContent, Focus: document.activeElement.getAttribute('href'),
		Kept: document.getElementById('nodes').kept})`, &told)
	if !strings.Contains(told.Status, "What waits, and why") || !strings.HasSuffix(told.Focus, "/backups") || !told.Kept {
		t.Errorf("after a change: %+v", told)
	}
	tab.Go(rootOf(link)+"object/pvc/default/mail", heading("pvc/mail")+" && "+isLive)
	s.change(t, func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "mail", metav1.DeleteOptions{})
	})
	tab.Wait(body + ".includes('does not exist any more')")
	quiet(t, tab, link)
	other := b.Open(t)
	other.Go(link, body+".includes('volplane page')")
	other.Go(rootOf(link), body+".includes('volplane page')")
}

// TestWithoutScripts: everything is available in a browser without scripts, and a reload shows changes.
func TestWithoutScripts(t *testing.T) {
	s, link := play(t, town()...)
	tab := browser.Start(t).Open(t)
	tab.Call("Emulation.setScriptExecutionDisabled", browser.Params{"value": true}, nil)
	tab.Go(link, heading("Overview")+" && document.getElementById('live').textContent.startsWith('As of')")
	s.change(t, func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "backups", metav1.DeleteOptions{})
	})
	for _, place := range []string{"claims", "volumes", "mounts", "object/pvc/default/photos", "object/pv/-/pv-photos"} {
		tab.Go(rootOf(link)+place, "location.href.endsWith('"+place+"') && document.querySelector('main table')")
	}
	tab.Go(rootOf(link)+"claims?find=PHOTO", body+".includes('1 to 1 of 1')")
	testkit.Eventually(t, time.Minute, func() string {
		var text string
		tab.Go(rootOf(link)+"claims", heading("Claims"))
		tab.Eval(body, &text)
		return map[bool]string{true: "a claim that is deleted is shown"}[strings.Contains(text, "backups")]
	})
	quiet(t, tab, link)
}

// TestKeyboard: each link, field and button is reached with the key Tab, in reading order, and visibly has the focus.
func TestKeyboard(t *testing.T) {
	_, link := play(t, town()...)
	tab := browser.Start(t).Open(t)
	tab.Go(link, heading("Overview"))
	for _, place := range []string{"", "claims", "object/pvc/default/backups"} {
		tab.Go(rootOf(link)+place, "document.querySelector('main h1') && location.href.endsWith('"+place+"') && "+isLive)
		var all int
		tab.Eval(`window.all = [...document.querySelectorAll("a[href], input, button")]; all.length`, &all)
		var order []int
		for range all {
			tab.Press("Tab", 9)
			var at int
			tab.Eval(`(() => { const e = document.activeElement, s = getComputedStyle(e);
				return s.outlineStyle === "none" || s.outlineWidth === "0px" ? -2 : all.indexOf(e); })()`, &at)
			order = append(order, at)
		}
		if !slices.IsSorted(order) || len(slices.Compact(slices.Clone(order))) != all || order[0] != 0 {
			t.Errorf("%q has %d things to reach, and Tab goes to %v", place, all, order)
		}
	}
	quiet(t, tab, link)
}

// node is a node of the tree for screen readers.
type node struct {
	Ignored bool
	Role    struct{ Value string }
	Name    struct{ Value string }
}

// TestScreenReader: a screen reader gets landmarks, headings, tables with headers, a list for the chain, and a place
// for news, and every control has a name.
func TestScreenReader(t *testing.T) {
	_, link := play(t, town()...)
	tab := browser.Start(t).Open(t)
	tab.Go(link, heading("Overview"))
	for place, want := range map[string][]string{
		"": {
			"banner", "navigation Pages", "main", "status", "heading Overview", "heading What waits, and why", "region Drivers",
			"list The chain from the claim to the mount", "columnheader Driver", "rowheader " + driver, "table",
		},
		"claims":                    {"search", "textbox Name or namespace contains", "button Find", "rowheader photos"},
		"object/pvc/default/photos": {"heading The chain", "region Its life", "columnheader When"},
	} {
		tab.Go(rootOf(link)+place, "document.querySelector('main h1') && location.href.endsWith('"+place+"')")
		var tree struct{ Nodes []node }
		tab.Call("Accessibility.getFullAXTree", browser.Params{}, &tree)
		var has []string
		for _, n := range tree.Nodes {
			if n.Ignored {
				continue
			}
			has = append(has, n.Role.Value, strings.TrimSpace(n.Role.Value+" "+n.Name.Value))
			if slices.Contains([]string{"link", "button", "textbox"}, n.Role.Value) && n.Name.Value == "" {
				t.Errorf("%q has a %s without a name", place, n.Role.Value)
			}
		}
		for _, w := range want {
			if !slices.Contains(has, w) {
				t.Errorf("%q has no %q, but %q", place, w, slices.Compact(slices.Sorted(slices.Values(has))))
			}
		}
		var language string
		tab.Eval("document.documentElement.lang + document.querySelectorAll('h1').length", &language)
		if language != "en1" {
			t.Errorf("%q: language and number of titles are %s", place, language)
		}
	}
}

// contrasts returns the least contrast of a text with its ground, as WCAG counts it.
const contrasts = `(() => {
	const light = (c) => { const [r, g, b] = c.match(/[\d.]+/g).map((v) => (v /= 255) <= .04045 ? v / 12.92 :
		((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
	const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
		if (!c.startsWith("rgba(0, 0, 0, 0")) return c; } return "rgb(255, 255, 255)"; };
	let least = 21;
	for (const e of document.querySelectorAll("main *, header *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
		const a = light(getComputedStyle(e).color), b = light(ground(e));
		least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
	}
	return least;
})()`

// TestDarkAndLight: the page is as the user prefers, and can be read in both.
func TestDarkAndLight(t *testing.T) {
	_, link := play(t, town()...)
	tab := browser.Start(t).Open(t)
	tab.Go(link, heading("Overview"))
	grounds := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		tab.Scheme(scheme)
		for _, place := range []string{"", "object/pvc/default/backups"} {
			tab.Go(rootOf(link)+place, "document.querySelector('main h1') && location.href.endsWith('"+place+"')")
			var least float64
			tab.Eval(contrasts, &least)
			if least < 4.5 {
				t.Errorf("%s, %q: the least contrast is %.1f", scheme, place, least)
			}
			if dir := os.Getenv("SCREENSHOTS"); dir != "" {
				name := map[string]string{"": "overview", "object/pvc/default/backups": "claim"}[place]
				file := filepath.Join(dir, "page-"+name+"-"+scheme+".png")
				if err := os.WriteFile(file, tab.Screenshot(1180, 820), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		var ground string
		tab.Eval("getComputedStyle(document.body).backgroundColor", &ground)
		grounds[ground] = scheme
	}
	if len(grounds) != 2 {
		t.Errorf("the grounds are %v", grounds)
	}
	quiet(t, tab, link)
}

// attacks are texts that would run a script, lead away or hide something if a page let them.
func attacks() []string {
	return []string{
		`<script>window.pwned = 1; alert(1)</script>`, `"><img src=x onerror="window.pwned=1">`,
		`' onmouseover='window.pwned=1' x='`, `javascript:window.pwned=1`, `</main><iframe src="https://example.com/"></iframe>`,
		`{{.}}`, `<svg/onload=window.pwned=1>`, `</textarea></title></style><style>*{display:none}</style>`,
		"\u202e\u2066txt.exe\x00\x1b[31m\u0085\u2028", `<meta http-equiv="refresh" content="0; url=https://example.com/">`,
		`<base href="https://example.com/">`, `${window.pwned=1}`, strings.Repeat("A<b>", 20_000), `../../../enter?token=`,
	}
}

// TestHostileTexts: whatever drivers, users and other programs write, no script runs, nothing is requested from
// elsewhere, and texts are cut.
func TestHostileTexts(t *testing.T) {
	objects := town()
	var places []string
	for i, text := range attacks() {
		objects = append(objects, hostile(i, text)...)
		name := url.PathEscape(text)
		if len(text) < 1000 {
			places = append(places, "object/pvc/"+name+"/"+name, "object/pv/-/"+name, "object/csidriver/-/"+name,
				"object/node/-/"+name, "object/pod/"+name+"/"+name, "claims?find="+url.QueryEscape(text),
				"mounts?node="+url.QueryEscape(text))
		}
	}
	_, link := play(t, objects...)
	tab := browser.Start(t).Open(t)
	tab.Go(link, heading("Overview")+" && "+isLive+" && "+body+".includes('<script>window.pwned = 1; alert(1)</script>')")
	for _, place := range append([]string{"", "claims", "volumes", "mounts"}, places...) {
		tab.Go(rootOf(link)+place, "document.querySelector('main h1')")
		for _, harm := range harms(tab, rootOf(link)) {
			t.Errorf("%.200q: %s", place, harm)
		}
	}
	for _, complaint := range tab.Complaints() {
		// The page of an object that does not exist is an error, which the browser logs.
		if !strings.Contains(complaint, "status of 40") {
			t.Errorf("the browser complains: %s", complaint)
		}
	}
	for _, address := range tab.Asked() {
		if strings.Contains(address, "//example.com") {
			t.Errorf("the browser asks elsewhere: %s", address)
		}
	}
}

// harms returns what hostile texts have done to a page.
func harms(tab *browser.Tab, root string) []string {
	var out []string
	tab.Eval(fmt.Sprintf(`(() => {
		const texts = [...document.querySelectorAll("main *")].flatMap((e) => [...e.childNodes])
			.filter((n) => n.nodeType === 3).map((n) => n.data), harms = [];
		const harm = (is, what) => { if (is) harms.push(what); };
		harm(window.pwned || frames.length, "a script has run, or a frame is there");
		harm(document.querySelector("img, svg, iframe, base, body style, body meta, body script"), "there is an element");
		harm(texts.some((s) => /[\u0000-\u0008\u001b\u0085\u202a-\u202e\u2066-\u2069]/.test(s)), "a text has what is not seen");
		harm(texts.some((s) => s.length > 2000), "a text is long");
		harm([...document.querySelectorAll("main a")].some((a) => !a.href.startsWith(%q)), "a link leads away");
		return harms;
	})()`, root), &out)
	return out
}
