/** Shows the server's messages, also while no page of it is open. It stores nothing. */

const scope = /** @type {any} */ (self);

scope.addEventListener("push", (/** @type {any} */ event) => {
  const { title, body, tag, path } = event.data.json();
  const icon = new URL("../icon.png", scope.location.href).href;
  event.waitUntil(scope.registration.showNotification(title, { body, tag, icon, data: path }));
});

scope.addEventListener("notificationclick", (/** @type {any} */ event) => {
  event.notification.close();
  event.waitUntil(scope.clients.openWindow(event.notification.data));
});
