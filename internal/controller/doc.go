// Package controller has the parts that all controllers share: the declaration of what each reads
// and writes, and the loop that runs it.
//
// A controller works in three steps: Reconcile gathers the facts about one key from the caches, a
// function of internal/decide returns a plan for them, and Reconcile applies the plan's actions in
// order. Controllers never import each other; they communicate only through API objects.
package controller
