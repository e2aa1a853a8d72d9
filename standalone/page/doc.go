// Package page shows in a browser what waits and why, volumes by node, drivers, and the life of one volume: the facts
// and sentences of `volplane why`, which it only arranges. It reads, and changes nothing.
//
// Life cycle: New makes a page that nobody sees. Show gives it a control plane. An invitation, which only those get who
// have a right to it, begins to listen and is a link that works once; the browser's cookie works until the process ends
// or a day has passed. While tabs are open, one goroutine follows the control plane and renders each page that somebody
// looks at once a change, for all tabs. Run ends all of that with its context.
package page
