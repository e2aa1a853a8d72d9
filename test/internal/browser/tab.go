package browser

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"volplane.dev/volplane/internal/testkit"
)

// Tab is one page of a browser, with cookies of its own.
type Tab struct {
	t       *testing.T
	b       *Browser
	session string

	mu         sync.Mutex
	complaints []string
	asked      []string
}

// Params are those of a command.
type Params map[string]any

// Open opens a tab.
func (b *Browser) Open(t *testing.T) *Tab {
	t.Helper()
	var own struct {
		ID string `json:"browserContextId"`
	}
	var target struct {
		ID string `json:"targetId"`
	}
	var session struct {
		ID string `json:"sessionId"`
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(b.call("", "Target.createBrowserContext", Params{}, &own))
	check(b.call("", "Target.createTarget", Params{
		"url": "about:blank", "browserContextId": own.ID, "width": 1280, "height": 900,
	}, &target))
	check(b.call("", "Target.attachToTarget", Params{"targetId": target.ID, "flatten": true}, &session))
	tab := &Tab{t: t, b: b, session: session.ID}
	b.mu.Lock()
	b.tabs[session.ID] = tab
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Accessibility"} {
		tab.Call(domain+".enable", Params{}, nil)
	}
	tab.Call("Emulation.setFocusEmulationEnabled", Params{"enabled": true}, nil)
	return tab
}

// note records the browser's complaints.
func (t *Tab) note(m message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch m.Method {
	case "Page.javascriptDialogOpening", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
		t.complaints = append(t.complaints, m.Method+" "+string(m.Params))
	case "Network.requestWillBeSent":
		var sent struct {
			Request struct {
				URL string `json:"url"`
			} `json:"request"`
		}
		if json.Unmarshal(m.Params, &sent) == nil {
			t.asked = append(t.asked, sent.Request.URL)
		}
	}
}

// Complaints returns what the browser has complained of.
func (t *Tab) Complaints() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.complaints)
}

// Asked returns the addresses that the browser has requested.
func (t *Tab) Asked() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.asked)
}

// Call sends a command to the tab.
func (t *Tab) Call(method string, params Params, result any) {
	t.t.Helper()
	if err := t.b.call(t.session, method, params, result); err != nil {
		t.t.Fatal(err)
	}
}

// Eval evaluates an expression in the tab, and waits for it if it is a promise. Strict policies of a page do not
// concern it.
func (t *Tab) Eval(expression string, result any) {
	t.t.Helper()
	if err := t.eval(expression, result); err != nil {
		t.t.Fatal(err)
	}
}

func (t *Tab) eval(expression string, result any) error {
	var out struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	err := t.b.call(t.session, "Runtime.evaluate", Params{
		"expression": expression, "awaitPromise": true, "returnByValue": true,
	}, &out)
	switch {
	case err != nil:
		return err
	case out.Exception != nil:
		return fmt.Errorf("%s: %s", expression, out.Exception.Text)
	case result == nil:
		return nil
	}
	return json.Unmarshal(out.Result.Value, result)
}

// Go opens an address, and waits until it and all automatic redirections are loaded, and condition is true.
func (t *Tab) Go(address, condition string) {
	t.t.Helper()
	t.Call("Page.navigate", Params{"url": address}, nil)
	t.Wait(condition)
}

// Wait waits until a condition is true.
func (t *Tab) Wait(condition string) {
	t.t.Helper()
	testkit.Eventually(t.t, patience, func() string {
		var is bool
		// If the page is replaced while it is queried, it is queried again.
		err := t.eval(`document.readyState === "complete" && !!(`+condition+")", &is)
		if err == nil && is {
			return ""
		}
		var text string
		_ = t.eval("location.href + ' ' + (document.body ? document.body.innerText : '')", &text)
		return fmt.Sprintf("%s (%v), of %.3000s; complaints: %v", condition, err, text, t.Complaints())
	})
}

// Press presses and releases a key, such as "Tab".
func (t *Tab) Press(key string, code int) {
	t.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		t.Call("Input.dispatchKeyEvent", Params{
			"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code,
		}, nil)
	}
}

// Scheme has the user prefer "light" or "dark".
func (t *Tab) Scheme(name string) {
	t.t.Helper()
	t.Call("Emulation.setEmulatedMedia", Params{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}},
	}, nil)
}

// Screenshot returns what is seen, as a PNG.
func (t *Tab) Screenshot(width, height int) []byte {
	t.t.Helper()
	t.Call("Emulation.setDeviceMetricsOverride", Params{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
	}, nil)
	var shot struct {
		Data []byte `json:"data"`
	}
	t.Call("Page.captureScreenshot", Params{"format": "png"}, &shot)
	return shot.Data
}
