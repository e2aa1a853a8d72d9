// Package page shows in a browser what waits and why, volumes by node, drivers, and the life of one volume: the facts
// and sentences of `volplane why`, which it only arranges. It reads, and changes nothing.
//
// Life cycle: New makes a page that does not listen yet. Show gives it a control plane. An invitation, which requires
// the right to get one, makes it listen and is a link that works once; the browser's cookie works until the process
// ends or a day has passed. While tabs are open, one goroutine follows the control plane and renders each open page
// once per change, for all tabs. Run ends all of that with its context.
package page
